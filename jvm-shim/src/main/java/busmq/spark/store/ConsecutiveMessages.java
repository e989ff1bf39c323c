package busmq.spark.store;

import java.util.List;

/**
 * Consecutive messages of a queue: the first has id {@code first}.
 *
 * @param pairs id, value, id, value …
 * @param from the first message of {@code pairs} that counts, {@code until} the one after the last
 */
public record ConsecutiveMessages(
        String queue, long first, List<Object> pairs, int from, int until) {
    public byte[] value(int at) {
        return (byte[]) pairs.get(2 * at + 1);
    }

    /** The id of the message at a place of {@code pairs}. */
    static long id(List<Object> pairs, int at) {
        long id = 0;
        for (byte digit : (byte[]) pairs.get(2 * at)) {
            id = 10 * id + digit - '0';
        }
        return id;
    }
}
