package busmq.spark.source;

import busmq.spark.BusException;
import busmq.spark.core.Position;
import busmq.spark.store.ReadStore;
import java.util.HashMap;
import java.util.Map;
import java.util.OptionalLong;
import java.util.concurrent.TimeUnit;

/**
 * The lag of a query for its progress, like busmq_spark/spark/read/planning.py. Redis is asked once
 * a second at most.
 */
final class QueryLagMeter {
    private static final long LAG_INTERVAL_NS = TimeUnit.SECONDS.toNanos(1);

    private Long nextAskNs;
    private Long seconds;

    /**
     * Return the lag after the end of a batch.
     *
     * @param seconds since the oldest of the messages came, or a little less, as far as that is
     *     known; null where it is known of none
     */
    record Lag(long messages, Long seconds) {}

    /**
     * {@code ends} of the last batch, {@code lastIds} the newest ids. A lag that cannot be read now
     * is unknown.
     */
    Lag measure(Map<String, Position> ends, Map<String, Long> lastIds, ReadStore store) {
        Map<String, Long> waiting = new HashMap<>();
        long messages = 0;
        for (Map.Entry<String, Position> end : ends.entrySet()) {
            long behind =
                    lastIds.getOrDefault(end.getKey(), 0L) - end.getValue().last();
            if (behind > 0) {
                waiting.put(end.getKey(), end.getValue().last() + 1);
                messages += behind;
            }
        }
        if (waiting.isEmpty()) {
            nextAskNs = null;
            return new Lag(0, 0L);
        }
        long now = System.nanoTime();
        if (nextAskNs == null || now - nextAskNs >= 0) {
            nextAskNs = now + LAG_INTERVAL_NS;
            seconds = oldestAgeS(waiting, store);
        }
        return new Lag(messages, seconds);
    }

    private static Long oldestAgeS(Map<String, Long> waiting, ReadStore store) {
        try {
            OptionalLong age = store.ages(waiting).values().stream()
                    .mapToLong(Long::longValue)
                    .max();
            return age.isPresent() && age.getAsLong() >= 0
                    ? Long.valueOf(TimeUnit.MILLISECONDS.toSeconds(age.getAsLong()))
                    : null;
        } catch (BusException error) {
            return null; // the same error is thrown where the queues are read
        }
    }
}
