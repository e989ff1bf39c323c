package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import java.util.function.LongSupplier;

/**
 * The wait for a queue at its {@code maxsize}: retries end after so many ms without any room; 0
 * fails at once.
 */
final class FullQueueWait {
    private final long timeoutMs;
    private long sinceMs;
    private long left = -1;

    FullQueueWait(long timeoutMs) {
        this.timeoutMs = timeoutMs;
    }

    /**
     * Called each time there was no room for {@code left} rows: how many ms to wait before the next
     * try. Throws BUSMQ_QUEUE_FULL.
     */
    long pauseMs(String queue, LongSupplier maxsize, long left, long nowMs) {
        if (this.left != left) {
            sinceMs = nowMs;
            this.left = left;
        }
        if (nowMs - sinceMs >= timeoutMs) {
            throw BusException.of(
                    ErrorKind.QUEUE_FULL,
                    "queue",
                    queue,
                    "maxsize",
                    maxsize.getAsLong(),
                    "left",
                    left,
                    "waited",
                    describeWait());
        }
        return Math.min(100, Math.max(5, (nowMs - sinceMs) / 4));
    }

    private String describeWait() {
        double seconds = timeoutMs / 1000.0;
        String text =
                timeoutMs % 1000 == 0 ? Long.toString(timeoutMs / 1000) : Double.toString(seconds);
        return timeoutMs == 0 ? "" : " for " + text + " s";
    }
}
