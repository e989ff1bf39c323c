package busmq.spark.redis;

import busmq.spark.options.RedisOptions;
import java.util.Map;

/**
 * Hears pushes by pub/sub: one daemon thread and one connection per process and server, shared by all readers. It only makes things faster:
 * while it cannot connect its bells are silent, and readers go on by polling.
 */
public final class Doorbells {
    private Doorbells() {
    }

    /** A bell for some queues, each with the index of its server ({@link Links#locate}). Returns at once; rings once when Redis has confirmed. */
    public static Bell bell(RedisOptions options, Map<String, Integer> queues) {
        throw new UnsupportedOperationException("landing soon");
    }
}
