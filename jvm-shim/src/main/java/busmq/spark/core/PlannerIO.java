package busmq.spark.core;

import java.util.Collection;
import java.util.Map;

/**
 * What {@link BatchPlanner} asks, and what is done about a loss: in a fixed order, so that a test can be a table. {@code StreamQueueAcquirer} answers; in Python
 * the questions are those of core/batch_planner.py, and spark/planner_io.py answers.
 */
public interface PlannerIO {
    /** How many ids each queue has given out. */
    Map<String, Long> askQueueCounters(Collection<String> queues);

    /**
     * A queue that holds all messages after a position.
     *
     * @param lastId the id given last
     * @param mark the fingerprint of the message with that id or, if it is lower, the one asked for; empty where nothing follows
     */
    record IntactQueue(long lastId, String mark) {}

    /**
     * Those of the queues that hold all messages after their position. It takes Redis half the time of {@link #askQueueStates}, which says what the others
     * hold.
     */
    Map<String, IntactQueue> askIntactQueues(Map<String, Position> at, Map<String, Long> upto);

    /** The state of each queue; {@code ids} names the message whose fingerprint is compared, -1 for none. */
    Map<String, QueueState> askQueueStates(Map<String, Long> ids);

    /** What the clock of each queue says of a time, in milliseconds since 1970; below 0: so long before now. */
    Map<String, TimeLookupResult> askIdsAtTimes(Map<String, Long> wanted);

    /** The fingerprints of messages, by queue. */
    Map<String, String> askFingerprints(Map<String, Long> ids);

    /**
     * Up to which of the ids {@code first..last} the values take {@code budget} bytes at most: that id, or the one before {@code first} when none
     * fits, and these bytes.
     */
    long[] askLastIdWithinBytes(String queue, long first, long last, long budget);

    /**
     * Messages were lost after the position {@code at}; null: after where startingOffsets begins. The answer is the position to go on from, null to
     * decide later; throws the loss when it is not allowed.
     */
    Position handleLoss(String queue, Position at, Loss loss);

    /** A queue that was new has expired: it is not held any more, and acquired anew when it is found again. */
    void dropExpiredQueue(String queue);
}
