package busmq.spark.redis;

import busmq.spark.BusException;
import java.util.List;

/**
 * A link to one logical server: a direct one, the present master of a sentinel group, or a whole
 * cluster. Connects at the first call. Not for two threads at once.
 *
 * <p>Replies are {@code byte[]}, {@code Long}, {@code List<Object>} or null. Calls that are all
 * idempotent are repeated after a broken link for 8 s, or for 60 s while a fail-over may be under
 * way; others only while it is certain that Redis has not seen them.
 */
public interface RedisLink extends AutoCloseable {
    /** Sends one call and returns its reply. Throws {@link BusException}. */
    default Object run(RedisCall call) {
        return runAll(List.of(call)).get(0);
    }

    /**
     * Sends calls in one round trip (one per node in a cluster). Throws the error of the first that
     * failed; the others were executed.
     */
    default List<Object> runAll(List<RedisCall> calls) {
        List<Object> replies = tryAll(calls);
        for (Object reply : replies) {
            if (reply instanceof BusException failed) {
                throw failed;
            }
        }
        return replies;
    }

    /**
     * Execute the calls and return their replies, with a {@link BusException} in the place of each
     * failed call.
     */
    List<Object> tryAll(List<RedisCall> calls);

    /** Closes the connections; a later call opens new ones. */
    @Override
    void close();
}
