package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.options.WriteOptions;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * While a task stages, renews the ttl of what its run has staged: its own lists, however long its
 * rows take to come, and those of tasks that have ended.
 */
final class StagingRenewal implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(StagingRenewal.class);
    private static final long PERIOD_MS = 250L * SinkStore.STAGE_TTL_S;
    private static final ScheduledExecutorService TIMER =
            Executors.newSingleThreadScheduledExecutor(work -> {
                Thread thread = new Thread(work, "busmq-staged");
                thread.setDaemon(true);
                return thread;
            });

    private final long everyMs;
    private final ScheduledFuture<?> work;
    private long dueNs = System.nanoTime();
    /** 0 until the task stages. */
    private volatile long epoch;

    StagingRenewal(WriteOptions options, String sink) {
        this(
                () -> new SinkStore(options),
                sink,
                Long.getLong("busmq.renewalMs", PERIOD_MS),
                SharedPythonConstants.number("renewalRetryMs"));
    }

    /** {@code againMs}: how long after an error. */
    StagingRenewal(Supplier<SinkStore> open, String sink, long everyMs, long againMs) {
        this.everyMs = everyMs;
        work = TIMER.scheduleWithFixedDelay(
                () -> renew(open, sink),
                everyMs,
                Math.min(againMs, everyMs),
                TimeUnit.MILLISECONDS);
    }

    void setEpoch(long epoch) {
        this.epoch = epoch;
    }

    @Override
    public void close() {
        work.cancel(false);
    }

    private void renew(Supplier<SinkStore> open, String sink) {
        if (epoch == 0 || System.nanoTime() - dueNs < 0) {
            return;
        }
        try (SinkStore store = open.get()) {
            store.runsOf(sink).renew(epoch);
            dueNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(everyMs);
        } catch (BusException error) {
            LOG.warn(
                    "what sink {} has staged could not be renewed, and is tried again: {}",
                    sink,
                    error.getMessage());
        } catch (RuntimeException error) {
            LOG.error(
                    "what sink {} has staged could not be renewed, and is tried again",
                    sink,
                    error);
        }
    }
}
