package busmq.spark.redis;

import busmq.spark.BusException;
import busmq.spark.Contract;
import busmq.spark.ErrorKind;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.util.concurrent.ThreadLocalRandom;

/** How long one step is tried anew: the pauses between the tries, and their end. */
final class Patience {
    /**
     * While no server answers, the first wait for a reply not counted: that is longer, and the link alone may be broken. A last try that hangs adds
     * its own time-out. Shorter in tests.
     */
    static final long UNREACHABLE_MS = Long.getLong("busmq.patienceMs", Contract.number("patienceMs"));
    /** While servers answer but none is master: Sentinel and Cluster need up to 35 s for a fail-over by default. */
    static final long FAILOVER_MS = Contract.number("failoverPatienceMs");

    private final Endpoint endpoint;
    private long began = System.nanoTime();
    private int attempt;

    Patience(Endpoint endpoint) {
        this.endpoint = endpoint;
    }

    /** {@link #pause} after a reply was waited for in vain; the first such wait does not count. */
    void unanswered(RuntimeException problem) {
        began = attempt == 0 ? System.nanoTime() : began;
        pause(problem);
    }

    /** Waits before the next try; throws the translated error when it is not one to wait for, or the time is over. */
    void pause(RuntimeException problem) {
        BusException error = ErrorTranslator.translate(problem, endpoint);
        long given = endpoint.moves() && !(problem instanceof ServerUnreachable) ? FAILOVER_MS : UNREACHABLE_MS;
        double jitter = ThreadLocalRandom.current().nextDouble(0.5, 1);
        long pauseMs = (long) (Math.min(1000, 20L << Math.min(attempt++, 10)) * jitter);
        if (error.kind() != ErrorKind.LINK_LOST || (System.nanoTime() - began) / 1_000_000 + pauseMs > given) {
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
