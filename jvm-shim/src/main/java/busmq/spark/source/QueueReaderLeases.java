package busmq.spark.source;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.ErrorKind;
import busmq.spark.PyText;
import busmq.spark.store.LeaseHolderToken;
import busmq.spark.store.ReadStore;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Leases, of which a queue, or each subscription of it, has one: taking them, and the error when
 * another reader has one.
 */
final class QueueReaderLeases {
    /** A reader of this machine that is just being stopped may take so long to end. */
    private static final long STOPPING_READER_GRACE_MS =
            SharedPythonConstants.number("stoppingReaderGraceMs");

    private static final long LEASE_RETRY_PAUSE_MS =
            SharedPythonConstants.number("leaseRetryPauseMs");

    private static final Logger LOG = LoggerFactory.getLogger(QueueReaderLeases.class);

    private QueueReaderLeases() {}

    /**
     * Become the reader of all queues. Waits for a lease that may end (a stopping reader here, an
     * unknown one elsewhere). The result is those whose lease another stream of the same query
     * holds, and renews.
     */
    static Set<String> acquireLeases(
            ReadStore store,
            Collection<String> queues,
            String subscription,
            String token,
            SelfJoinReaders siblings) {
        long began = System.nanoTime();
        Map<String, String> dead = new HashMap<>();
        while (true) {
            Map<String, String> others = store.lease(queues, subscription, token, dead);
            others.values().removeIf(token::equals);
            Set<String> shared = new HashSet<>(others.keySet());
            others.values().removeIf(siblings::isSiblingToken);
            if (others.isEmpty()) {
                return shared;
            }
            dead = new HashMap<>(others);
            dead.values().removeIf(holder -> !LeaseHolderToken.isDead(holder));
            if (dead.isEmpty()) {
                boolean here = others.values().stream().anyMatch(LeaseHolderToken::isOnThisMachine);
                if (TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began)
                        > (here
                                ? STOPPING_READER_GRACE_MS
                                : ReadStore.LEASE_MS + STOPPING_READER_GRACE_MS)) {
                    Map.Entry<String, String> other =
                            others.entrySet().iterator().next();
                    throw busyError(store, other.getKey(), other.getValue(), subscription);
                }
                pauseBeforeRetry();
            }
        }
    }

    /**
     * Give up what this token holds, as far as Redis can be asked: this process lives on, and would
     * be taken for one that still reads.
     */
    static void releaseIfReachable(
            ReadStore store, Collection<String> queues, String subscription, String token) {
        if (token.isEmpty()) {
            return;
        }
        try {
            store.release(queues, subscription, token);
        } catch (BusException error) {
            LOG.warn(
                    "the lease ends by itself in {} s: {}",
                    TimeUnit.MILLISECONDS.toSeconds(ReadStore.LEASE_MS),
                    error.getMessage());
        }
    }

    /**
     * The error for a queue that another query reads; {@code holder} is its token, empty where it
     * has gone meanwhile.
     */
    static BusException busyError(
            ReadStore store, String queue, String holder, String subscription) {
        String found = "is read by another query"
                + (subscription.isEmpty() ? "" : " as subscription " + PyText.repr(subscription))
                + (holder.isEmpty()
                        ? ""
                        : " (" + store.describeHolder(queue, subscription, holder) + ")");
        return BusException.of(
                ErrorKind.QUEUE_BUSY,
                "queue",
                queue,
                "found",
                found,
                "remedy",
                "Stop that query, or give each query its own option 'subscription', or read with"
                        + " ack=none");
    }

    private static void pauseBeforeRetry() {
        try {
            Thread.sleep(LEASE_RETRY_PAUSE_MS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw BusException.of(
                    ErrorKind.STATE,
                    "event",
                    "wait for",
                    "what",
                    "a lease",
                    "state",
                    "interrupted",
                    "remedy",
                    "The query is being stopped");
        }
    }
}
