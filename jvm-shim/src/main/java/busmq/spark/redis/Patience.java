package busmq.spark.redis;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.util.concurrent.ThreadLocalRandom;

/** How long one step is tried anew: the pauses between the tries, and their end. */
final class Patience {
    /**
     * When nobody answers, from the end of the first try on: a reply that does not come is waited for longer than that, and the link alone may be
     * broken. A last try that hangs adds its own time-out. Shorter in tests.
     */
    static final long NOBODY_MS = Long.getLong("busmq.patienceMs", 8_000);
    /** While somebody answers but nobody is master: Sentinel and Cluster as they come need up to 35 s for a fail-over. */
    static final long FAILOVER_MS = 60_000;

    private final Endpoint endpoint;
    private long failedAt;
    private int attempt;

    Patience(Endpoint endpoint) {
        this.endpoint = endpoint;
    }

    /** Waits before the next try; throws the translated error when it is not one to wait for, or the time is over. */
    void pause(RuntimeException problem) {
        BusException error = Refusals.translate(problem, endpoint);
        long now = System.nanoTime();
        failedAt = attempt == 0 ? now : failedAt;
        long given = endpoint.moves() && !(problem instanceof NobodyAnswers) ? FAILOVER_MS : NOBODY_MS;
        double jitter = ThreadLocalRandom.current().nextDouble(0.5, 1);
        long pauseMs = (long) (Math.min(1000, 20L << Math.min(attempt++, 10)) * jitter);
        if (error.kind() != ErrorKind.LINK_LOST || (now - failedAt) / 1_000_000 + pauseMs > given) {
            throw error;
        }
        try {
            Thread.sleep(pauseMs);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new UncheckedIOException(new InterruptedIOException("interrupted while waiting for Redis")); // Spark takes it for a stop
        }
    }
}
