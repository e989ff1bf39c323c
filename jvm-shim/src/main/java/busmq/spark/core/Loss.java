package busmq.spark.core;

import java.util.Collection;
import java.util.Collections;

/**
 * Messages that were planned and are gone.
 *
 * @param kind as the {@code kind} of the Python errors, or {@code removed} when the state alone
 *     does not show by which client
 * @param ids how many ids are known to be missing; 0 when the number is unknown
 */
public record Loss(String kind, String expected, String found, long ids) {
    public Loss(String kind, String expected, String found) {
        this(kind, expected, found, 0);
    }

    /**
     * A loss between a position and the present queue; null when each message after the position is
     * stored.
     */
    public static Loss between(Position at, QueueState now) {
        String following = "ids from " + (at.last() + 1) + " on";
        if (!now.exists()) {
            return new Loss("expired", following + " of incarnation " + at.born(), "no such queue");
        }
        if (!now.born().equals(at.born())) {
            String other = now.born().isEmpty() ? "unnamed" : now.born();
            return new Loss(
                    "recreated",
                    "incarnation " + at.born() + " read up to id " + at.last(),
                    "incarnation " + other + " with ids up to " + now.lastId());
        }
        if (now.lastId() < at.last()) {
            return new Loss(
                    "rolled-back", "a last id of at least " + at.last(), "last id " + now.lastId());
        }
        if (!at.mark().isEmpty() && !now.mark().isEmpty() && !at.mark().equals(now.mark())) {
            return new Loss(
                    "reissued",
                    "message " + at.last() + " with fingerprint " + at.mark(),
                    "one with fingerprint " + now.mark());
        }
        if (now.floor() > at.last()) {
            return new Loss("removed", following, describeStored(now), now.floor() - at.last());
        }
        return null;
    }

    /**
     * Return the number of stored messages that an ack of {@code last} deletes unread, at once or
     * when retention ends. It is an upper bound where ids have holes. Messages that all readers
     * have acknowledged before do not count.
     *
     * @param own the acked id of its subscription, null when it has none yet
     * @param others those of the other subscriptions
     */
    public static long countMessagesToDelete(
            QueueState now, long last, Long own, Collection<Long> others) {
        if (own == null && !others.isEmpty()) {
            // Stored messages wait for other subscriptions; all have read the messages that are
            // gone.
            return 0;
        }
        long end = Math.min(
                Math.min(last, now.newest()), others.isEmpty() ? last : Collections.min(others));
        return Math.max(
                0,
                Math.min(
                        now.count(),
                        end - Math.max(Math.max(now.floor(), now.done()), own == null ? 0 : own)));
    }

    /** Return a description of the stored messages, for people. */
    public static String describeStored(QueueState now) {
        return now.count() > 0
                ? "oldest stored id " + now.oldest()
                : "nothing stored after id " + now.lastId();
    }
}
