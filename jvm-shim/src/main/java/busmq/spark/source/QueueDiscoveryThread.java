package busmq.spark.source;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.options.RedisOptions;
import busmq.spark.store.ReadStore;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BiFunction;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Looks for the queues that match a pattern, or are partitions of a topic: beside the planning, and
 * slowly where there are many keys. It ends with {@link #close}.
 */
final class QueueDiscoveryThread implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(QueueDiscoveryThread.class);
    /**
     * Pause between two steps of 1,000 keys each: a walk takes about a hundredth of the time of a
     * Redis.
     */
    private static final long SCAN_STEP_PAUSE_MS = SharedPythonConstants.number("scanStepPauseMs");

    /** Pause between two walks over the keys. Shorter in tests. */
    private static long betweenWalksMs = SharedPythonConstants.number("discoveryIntervalMs");

    private final RedisOptions options;
    private final BiFunction<ReadStore, Runnable, Collection<String>> findQueues;
    private final AtomicReference<Collection<String>> foundQueues =
            new AtomicReference<>(List.of());
    private final CountDownLatch ended = new CountDownLatch(1);

    /**
     * {@code findQueues} finds the queues of the query; its argument runs between two steps of a
     * walk over keys, and waits.
     */
    QueueDiscoveryThread(
            RedisOptions options, BiFunction<ReadStore, Runnable, Collection<String>> findQueues) {
        this.options = options;
        this.findQueues = findQueues;
    }

    void start() {
        Thread thread = new Thread(this::run, "busmq-discovery");
        thread.setDaemon(true);
        thread.start();
    }

    /** Return the result of the last walk, once; empty until the next walk has ended. */
    Collection<String> takeFoundQueues() {
        return foundQueues.getAndSet(List.of());
    }

    private void run() {
        try (ReadStore store = new ReadStore(options)) {
            String logged = "";
            while (!awaitEnd(betweenWalksMs)) {
                try {
                    foundQueues.set(findQueues.apply(store, this::waitForNextStep));
                    logged = "";
                } catch (BusException error) {
                    if (!error.getMessage().equals(logged)) {
                        LOG.warn("new queues are not found now: {}", error.getMessage());
                    }
                    logged = error.getMessage();
                } catch (RuntimeException | Error error) {
                    LOG.warn("looking for new queues met an unexpected error and goes on", error);
                }
            }
        }
    }

    private void waitForNextStep() {
        awaitEnd(SCAN_STEP_PAUSE_MS);
    }

    /** Waits so long; whether this has ended meanwhile. */
    private boolean awaitEnd(long ms) {
        try {
            return ended.await(ms, TimeUnit.MILLISECONDS);
        } catch (InterruptedException error) {
            ended.countDown(); // only the end of the process interrupts this thread
            return true;
        }
    }

    /** Ends the thread; returns at once. */
    @Override
    public void close() {
        ended.countDown();
    }
}
