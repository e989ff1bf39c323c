package busmq.spark.redis;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.ErrorKind;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadLocalRandom;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The rule for retries after a failure, as in busmq_spark/redis_io/retry.py:
 * tests/golden/retries-v1.json tests both.
 */
final class LinkRetry {
    /** Shorter in tests. */
    private static final long PATIENCE_MS =
            Long.getLong("busmq.patienceMs", SharedPythonConstants.number("patienceMs"));

    private static final long FAILOVER_PATIENCE_MS =
            SharedPythonConstants.number("failoverPatienceMs");
    private static final long FIRST_PAUSE_MS = SharedPythonConstants.number("firstPauseMs");
    private static final long MAX_PAUSE_MS = SharedPythonConstants.number("maxPauseMs");

    private static final Logger LOG = LoggerFactory.getLogger(LinkRetry.class);
    /** When a server that pauses writes is named in the log again. */
    private static final Map<String, Long> NEXT_WARNING_NS = new ConcurrentHashMap<>();

    private long startNs = System.nanoTime();
    private long oversleptMs;
    private int failures;

    /** Count a failure and return the pause after it. */
    long nextMs() {
        return (long) (Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS << Math.min(failures++, 16))
                * ThreadLocalRandom.current().nextDouble(0.5, 1));
    }

    /**
     * No reply came in time. The first such wait, which may be longer than the time given, does not
     * count.
     */
    void onNoReply() {
        startNs = failures == 0 ? System.nanoTime() : startNs;
    }

    /**
     * Return the pause before the next try. Throws the error when it is not one to wait for, or the
     * time given would be over.
     */
    long pauseMs(BusException error, long elapsedMs, long givenMs) {
        long pauseMs = nextMs();
        if (!error.kind().isLinkLost() || elapsedMs - oversleptMs + pauseMs > givenMs) {
            throw error;
        }
        return pauseMs;
    }

    /**
     * A pause is over. What it took longer than asked does not count: the process had no CPU time,
     * which says nothing of the server.
     */
    void onResumed(long pauseMs, long sleptMs) {
        oversleptMs += Math.max(0, sleptMs - pauseMs);
    }

    private static void warnOnceAMinute(RedisEndpoint endpoint, BusException error) {
        long now = System.nanoTime();
        Long due = NEXT_WARNING_NS.get(endpoint.maskedAddress());
        if (due == null || now - due >= 0) {
            NEXT_WARNING_NS.put(endpoint.maskedAddress(), now + FAILOVER_PATIENCE_MS * 1_000_000);
            LOG.warn("{}", error.getMessage());
        }
    }

    /** Waits before the next try of a step at {@code endpoint}, or throws the translated error. */
    void pause(RuntimeException problem, RedisEndpoint endpoint) {
        BusException error = ErrorTranslator.translate(problem, endpoint);
        boolean paused = error.kind() == ErrorKind.WRITES_PAUSED;
        if (paused) {
            warnOnceAMinute(endpoint, error);
        }
        boolean mayPass = paused || endpoint.mayMove() && !(problem instanceof NoServerReachable);
        try {
            long nowNs = System.nanoTime();
            long pauseMs = pauseMs(
                    error,
                    (nowNs - startNs) / 1_000_000,
                    mayPass ? FAILOVER_PATIENCE_MS : PATIENCE_MS);
            Thread.sleep(pauseMs);
            onResumed(pauseMs, (System.nanoTime() - nowNs) / 1_000_000);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            // Spark treats this exception as a stop.
            throw new UncheckedIOException(
                    new InterruptedIOException("interrupted while waiting for Redis"));
        }
    }
}
