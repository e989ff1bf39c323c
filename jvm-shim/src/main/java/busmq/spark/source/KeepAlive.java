package busmq.spark.source;

import busmq.spark.BusException;
import busmq.spark.options.ReadOptions;
import busmq.spark.store.ReadStore;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The thread beside a stream that keeps its queues alive and its leases held, also while a batch runs for hours. Ends with {@link #close}. */
final class KeepAlive implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(KeepAlive.class);
    private static final long PARTS = 3;
    private static final long MS_PER_S = 1000;

    private final ReadOptions options;
    private final String token;
    private final Map<String, Long> ttlsMs = new HashMap<>();
    private Thread thread;
    private boolean woken;
    private boolean stopped;
    private volatile String taken;

    KeepAlive(ReadOptions options, String token) {
        this.options = options;
        this.token = token;
    }

    /** Keep these queues (name to ttl in seconds) alive from now on, besides those watched already. */
    synchronized void watch(Map<String, Long> ttlsS) {
        ttlsS.forEach((queue, ttlS) -> ttlsMs.put(queue, ttlS * MS_PER_S));
        woken = true;
        notifyAll();
        if (thread == null) {
            thread = new Thread(this::run, "busmq-keep-alive");
            thread.setDaemon(true);
            thread.start();
        }
    }

    /** A queue whose lease somebody else holds now; null when there is none. */
    String taken() {
        return taken;
    }

    private void run() {
        try (ReadStore store = new ReadStore(options.redis())) {
            Map<String, Long> watched = next(0);
            while (watched != null) {
                touch(store, watched.keySet());
                long shortest = Collections.min(watched.values());
                watched = next((token.isEmpty() ? shortest : Math.min(ReadStore.LEASE_MS, shortest)) / PARTS);
            }
            Leases.giveUp(store, ttlsMs.keySet(), options.subscription(), token);
        }
    }

    private void touch(ReadStore store, Collection<String> queues) {
        try {
            store.keepAlive(queues, options.subscription(), token).forEach((queue, state) -> taken = state < 0 ? queue : taken);
        } catch (BusException error) {
            LOG.warn("keep-alive: {}", error.getMessage());
        } catch (RuntimeException error) {
            LOG.warn("keep-alive goes on after an error that nobody foresaw", error); // without it queues would end while they are read
        }
    }

    /** Waits so long, or until something changed; then what to keep alive, or null for nothing more. */
    private synchronized Map<String, Long> next(long waitMs) {
        long until = System.nanoTime() + waitMs * 1_000_000;
        for (long left = waitMs; !woken && !stopped && left > 0; left = (until - System.nanoTime()) / 1_000_000) {
            try {
                wait(left);
            } catch (InterruptedException error) {
                stopped = true; // nobody but the end of the process interrupts this thread
            }
        }
        woken = false;
        return stopped ? null : Map.copyOf(ttlsMs);
    }

    /** Ends the thread and waits for it a little, so that the leases are given up before the caller goes on. */
    @Override
    public void close() {
        Thread running;
        synchronized (this) {
            stopped = true;
            running = thread;
            notifyAll();
        }
        if (running == null) {
            return;
        }
        try {
            running.join(2 * MS_PER_S);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
