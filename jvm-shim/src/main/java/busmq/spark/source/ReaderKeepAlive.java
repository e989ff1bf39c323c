package busmq.spark.source;

import busmq.spark.BusException;
import busmq.spark.options.ReadOptions;
import busmq.spark.store.FailureDomain;
import busmq.spark.store.ReadStore;
import busmq.spark.store.ReaderRecord;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The threads beside a stream that keep its queues alive and its leases held, also while a batch
 * runs for hours: one for each server or node of a cluster, so that an unreachable one delays no
 * other. They end with {@link #close}.
 */
final class ReaderKeepAlive implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(ReaderKeepAlive.class);
    private static final long TOUCHES_PER_LIFE = 3;
    private static final long MS_PER_S = 1000;

    private final ReadOptions options;
    private final String token;
    private final Supplier<ReaderRecord.Announcement> announcement;
    private final Map<FailureDomain, KeepAliveThread> threads = new HashMap<>();
    private boolean stopped;
    private volatile String takenQueue;

    ReaderKeepAlive(
            ReadOptions options,
            String token,
            Supplier<ReaderRecord.Announcement> announcement) {
        this.announcement = announcement;
        this.options = options;
        this.token = token;
    }

    /**
     * Keep these queues (name to ttl in seconds) alive from now on, besides those watched already.
     * {@code domains}: where each of them is.
     */
    synchronized void addQueues(Map<String, Long> ttlsS, Map<String, FailureDomain> domains) {
        ttlsS.forEach((queue, ttlS) -> {
            FailureDomain domain = domains.get(queue);
            KeepAliveThread thread = threads.get(domain);
            if (thread == null) {
                thread = new KeepAliveThread(domain);
                threads.put(domain, thread);
                if (!stopped) {
                    thread.start();
                }
            }
            thread.addQueue(queue, ttlS * MS_PER_S);
        });
    }

    /** A queue whose lease another reader holds now; null when there is none. */
    String takenQueue() {
        return takenQueue;
    }

    /**
     * Ends the threads and waits for them a little, so that the leases are given up before the
     * caller goes on.
     */
    @Override
    public void close() {
        Map<FailureDomain, KeepAliveThread> running;
        synchronized (this) {
            stopped = true;
            running = Map.copyOf(threads);
        }
        running.values().forEach(KeepAliveThread::endThread);
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(2);
        try {
            for (KeepAliveThread thread : running.values()) {
                thread.join(Math.max(1, TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime())));
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    /** Touches the queues of one failure domain, each time a third of the shortest life is over. */
    private final class KeepAliveThread extends Thread {
        private final FailureDomain domain;
        private final Map<String, Long> ttlsMs = new HashMap<>();
        private boolean woken;
        private boolean ended;

        KeepAliveThread(FailureDomain domain) {
            super("busmq-keep-alive-" + domain.server() + domain.node());
            this.domain = domain;
            setDaemon(true);
        }

        synchronized void addQueue(String queue, long ttlMs) {
            ttlsMs.put(queue, ttlMs);
            woken = true;
            notifyAll();
        }

        synchronized void endThread() {
            ended = true;
            notifyAll();
        }

        @Override
        public void run() {
            try (ReadStore store = new ReadStore(options.redis())) {
                store.announceWith(announcement);
                Map<String, Long> watched = awaitQueues(0);
                while (watched != null) {
                    touchQueues(store, watched);
                    long shortest = watched.isEmpty()
                            ? ReadStore.LEASE_MS
                            : Collections.min(watched.values());
                    watched = awaitQueues(
                            (token.isEmpty() ? shortest : Math.min(ReadStore.LEASE_MS, shortest))
                                    / TOUCHES_PER_LIFE);
                }
                QueueReaderLeases.releaseIfReachable(
                        store, ttlsMs.keySet(), options.subscription(), token);
            }
        }

        private void touchQueues(ReadStore store, Map<String, Long> watched) {
            try {
                watched.keySet().forEach(queue -> store.setServer(queue, domain.server()));
                store.keepAlive(watched.keySet(), options.subscription(), token)
                        .forEach((queue, state) -> takenQueue = state < 0 ? queue : takenQueue);
                Map<String, FailureDomain> moved =
                        new HashMap<>(store.failureDomains(watched.keySet()));
                moved.values().removeIf(domain::equals);
                reassignMovedQueues(moved);
            } catch (BusException error) {
                LOG.warn("keep-alive: {}", error.getMessage());
            } catch (RuntimeException | Error error) {
                // Without this thread queues would expire while they are read.
                LOG.warn("keep-alive met an unexpected error and goes on", error);
            }
        }

        /**
         * Queues that are at another node of the cluster by now are handed to the thread of that
         * node.
         */
        private void reassignMovedQueues(Map<String, FailureDomain> moved) {
            Map<String, Long> ttlsS = new HashMap<>();
            synchronized (this) {
                moved.keySet().forEach(queue -> ttlsS.put(queue, ttlsMs.remove(queue) / MS_PER_S));
            }
            ReaderKeepAlive.this.addQueues(ttlsS, moved);
        }

        /**
         * Waits so long, or until something changed; then what to keep alive, or null for nothing
         * more.
         */
        private synchronized Map<String, Long> awaitQueues(long waitMs) {
            long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(waitMs);
            for (long left = waitMs;
                    !woken && !ended && left > 0;
                    left = TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime())) {
                try {
                    wait(left);
                } catch (InterruptedException error) {
                    ended = true; // only the end of the process interrupts this thread
                }
            }
            woken = false;
            return ended ? null : Map.copyOf(ttlsMs);
        }
    }
}
