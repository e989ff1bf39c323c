package busmq.spark.core;

import java.nio.charset.StandardCharsets;
import java.util.List;

/**
 * One queue as Redis has it now. Ids are 0 when there is none.
 *
 * @param ttlS 0 when the queue does not exist
 * @param born incarnation; empty when none of our parts has touched this life of the queue
 * @param given the id given last
 * @param mark fingerprint of the message asked for; empty when it is not stored
 */
public record QueueState(
        long ttlS, String born, long maxsize, long given, long oldest, long newest, long count, String mark, String newestMark) {
    /** Items of one queue in the flat reply of {@code lua/state.lua}. */
    public static final int ITEMS = 9;

    /** The queue whose items begin at {@code at}. */
    public static QueueState of(List<Object> reply, int at) {
        return new QueueState(
                (Long) reply.get(at), text(reply.get(at + 1)), (Long) reply.get(at + 2), id(reply.get(at + 3)), id(reply.get(at + 4)),
                id(reply.get(at + 5)), (Long) reply.get(at + 6), text(reply.get(at + 7)), text(reply.get(at + 8)));
    }

    public boolean exists() {
        return ttlS > 0;
    }

    /** The position from which everything stored can be read: one before the oldest message, or the last id given when it is empty. */
    public long floor() {
        return count > 0 ? oldest - 1 : given;
    }

    private static String text(Object item) {
        return new String((byte[]) item, StandardCharsets.UTF_8);
    }

    private static long id(Object item) {
        String digits = text(item);
        return digits.isEmpty() ? 0 : Long.parseLong(digits);
    }
}
