package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.options.WriteOptions;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** While a task stages, what its run has staged lives on: its own lists, however long its rows take to come, and those of tasks that have ended. */
final class Renewal implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(Renewal.class);
    private static final long MS = 250L * SinkStore.STAGE_TTL_S;
    private static final ScheduledExecutorService CLOCK = Executors.newSingleThreadScheduledExecutor(work -> {
        Thread thread = new Thread(work, "busmq-staged");
        thread.setDaemon(true);
        return thread;
    });

    private final ScheduledFuture<?> work;
    /** 0 until the task stages. */
    private volatile long epoch;

    Renewal(WriteOptions options, String sink) {
        long everyMs = Long.getLong("busmq.renewalMs", MS);
        work = CLOCK.scheduleWithFixedDelay(() -> renew(options, sink), everyMs, everyMs, TimeUnit.MILLISECONDS);
    }

    void of(long epoch) {
        this.epoch = epoch;
    }

    @Override
    public void close() {
        work.cancel(false);
    }

    private void renew(WriteOptions options, String sink) {
        if (epoch == 0) {
            return;
        }
        try (SinkStore store = new SinkStore(options)) {
            store.staging(sink).renew(epoch);
        } catch (RuntimeException error) {
            if (!(error instanceof BusException)) {
                LOG.error("what sink {} has staged could not be renewed, and is tried again", sink, error);
            } else {
                LOG.warn("what sink {} has staged could not be renewed, and is tried again: {}", sink, error.getMessage());
            }
        }
    }
}
