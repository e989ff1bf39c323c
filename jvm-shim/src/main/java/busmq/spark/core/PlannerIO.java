package busmq.spark.core;

import java.util.Collection;
import java.util.Map;

/**
 * What {@link Planner} has to know, and what is done about a loss: asked in a certain order, so that a test can be a table. {@code ReaderQueues} answers it;
 * in Python the questions are those of core/planner.py, and spark/planner_io.py answers.
 */
public interface PlannerIO {
    /** How many ids each queue has given out. */
    Map<String, Long> readCounters(Collection<String> queues);

    /** The state of each queue; {@code ids} names the message whose fingerprint is compared, -1 for none. */
    Map<String, QueueState> readStates(Map<String, Long> ids);

    /** What the clock of each queue says of a time, in milliseconds since 1970; below 0: so long before now. */
    Map<String, FoundTime> findTimes(Map<String, Long> wanted);

    /** The fingerprints of messages, by queue. */
    Map<String, String> readFingerprints(Map<String, Long> ids);

    /**
     * Up to which of the ids {@code first..last} the values take {@code budget} bytes at most: that id, or the one before {@code first} when none
     * fits, and these bytes.
     */
    long[] lastIdWithinBytes(String queue, long first, long last, long budget);

    /**
     * Messages are gone: after {@code at}, or (null) from where startingOffsets begins. Where reading goes on, null for not yet; throws the loss when
     * it is not allowed.
     */
    Position handleLoss(String queue, Position at, Loss loss);

    /** A queue that was new has expired: it is not held any more, and acquired anew when it is found again. */
    void forgetQueue(String queue);
}
