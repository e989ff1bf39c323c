package busmq.spark.core;

import java.util.Collection;
import java.util.Map;

/**
 * The questions of {@link BatchPlanner}, and the reaction to a loss. Their order is fixed, so that
 * a test can be a table. {@code StreamQueueAcquirer} answers. In Python {@code PlannerIO} is in
 * reading/batch_planner.py, and {@code QueryPlannerIO} in spark/read/planning.py answers.
 */
public interface PlannerIO {
    /** Return the newest id of each queue. */
    Map<String, Long> askQueueCounters(Collection<String> queues);

    /**
     * A queue that holds all messages after a position.
     *
     * @param lastId the id given last
     * @param mark the fingerprint of the message with that id or, if it is lower, the one asked
     *     for; empty where nothing follows
     */
    record IntactQueue(long lastId, String mark) {}

    /**
     * Return the queues that hold all messages after their position. It takes Redis half the time
     * of {@link #askQueueStates}, which says what the others hold.
     */
    Map<String, IntactQueue> askIntactQueues(Map<String, Position> at, Map<String, Long> upto);

    /**
     * The state of each queue; {@code ids} names the message whose fingerprint is compared, -1 for
     * none.
     */
    Map<String, QueueState> askQueueStates(Map<String, Long> ids);

    /**
     * Look up a time in the clock of each queue. The time is in milliseconds since 1970; a negative
     * one counts back from now.
     */
    Map<String, TimeLookupResult> askIdsAtTimes(Map<String, Long> wanted);

    /** The fingerprints of messages, by queue. */
    Map<String, String> askFingerprints(Map<String, Long> ids);

    /**
     * Up to which of the ids {@code first..last} the values take {@code budget} bytes at most: that
     * id, or the one before {@code first} when none fits, and these bytes.
     */
    long[] askLastIdWithinBytes(String queue, long first, long last, long budget);

    /**
     * Messages were lost after the position {@code at}; null: after where startingOffsets begins.
     * The answer is the position to go on from, null to decide later; throws the loss when it is
     * not allowed.
     */
    Position handleLoss(String queue, Position at, Loss loss);

    /**
     * A queue that was new has expired: it is not held any more, and acquired anew when it is found
     * again.
     */
    void dropExpiredQueue(String queue);
}
