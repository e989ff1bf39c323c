package busmq.spark.core;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.ErrorKind;
import busmq.spark.PyText;
import java.nio.charset.StandardCharsets;
import java.util.List;

/**
 * The state of a queue in Redis. Ids are 0 when there is none.
 *
 * @param ttlS 0 when the queue does not exist
 * @param born incarnation; empty when none of our parts has touched this life of the queue
 * @param lastId the id given last
 * @param mark fingerprint of the message asked for; empty when it is not stored
 * @param done of a queue that keeps what is acknowledged: everything up to this id has been, by
 *     all readers there were; else 0
 */
public record QueueState(
        long ttlS,
        String born,
        long maxsize,
        long lastId,
        long oldest,
        long newest,
        long count,
        String mark,
        String newestMark,
        long done) {
    /** Items of one queue in the flat reply of {@code lua/state.lua}. */
    public static final int ITEMS_PER_QUEUE = SharedPythonConstants.intNumber("stateItems");

    /** The state of a queue that keeps no acknowledged messages. */
    public QueueState(
            long ttlS,
            String born,
            long maxsize,
            long lastId,
            long oldest,
            long newest,
            long count,
            String mark,
            String newestMark) {
        this(ttlS, born, maxsize, lastId, oldest, newest, count, mark, newestMark, 0);
    }

    /** The queue whose items begin at {@code at}. */
    public static QueueState of(String queue, List<Object> reply, int at) {
        long lastId = parseId(queue, "last id", reply.get(at + 3));
        return new QueueState(
                (Long) reply.get(at),
                text(reply.get(at + 1)),
                (Long) reply.get(at + 2),
                lastId,
                parseStoredId(queue, "oldest stored id", reply.get(at + 4)),
                parseStoredId(queue, "newest stored id", reply.get(at + 5)),
                (Long) reply.get(at + 6),
                text(reply.get(at + 7)),
                text(reply.get(at + 8)),
                Math.min(
                        lastId,
                        parseStoredId(queue, "id that all have acknowledged", reply.get(at + 9))));
    }

    public boolean exists() {
        return ttlS > 0;
    }

    /**
     * The position from which everything stored can be read: one before the oldest message, or the
     * last id given when it is empty.
     */
    public long floor() {
        return count > 0 ? oldest - 1 : lastId;
    }

    private static String text(Object item) {
        return new String((byte[]) item, StandardCharsets.UTF_8);
    }

    private static long parseStoredId(String queue, String what, Object item) {
        return text(item).isEmpty() ? 0 : parseId(queue, what, item);
    }

    /** An id as a key of the queue has it; {@code what} it is, for people. */
    public static long parseId(String queue, String what, Object item) {
        String digits = text(item);
        if (!digits.matches("\\d{1,16}")) {
            throw BusException.of(
                    ErrorKind.QUEUE_DAMAGED,
                    "queue",
                    queue,
                    "expected",
                    "a whole number from 0 on",
                    "found",
                    "its " + what + " is "
                            + PyText.repr(digits.substring(0, Math.min(40, digits.length()))));
        }
        return Long.parseLong(digits);
    }
}
