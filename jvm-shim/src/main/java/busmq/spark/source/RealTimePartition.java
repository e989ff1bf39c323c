package busmq.spark.source;

import busmq.spark.core.Position;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * The queues that one reader follows in a batch of real-time mode.
 *
 * @param pollMs how often it asks Redis while no push is signalled
 * @param endsAtOnce whether the batch only says where the query begins, and ends at once
 */
record RealTimePartition(List<QueueEntry> queues, long pollMs, boolean endsAtOnce)
        implements InputPartition {
    /**
     * A queue of the partition.
     *
     * @param entry where the batch begins
     * @param startsAnew whether the queue enters the query here, or goes on after a loss
     * @param shared whether another source of the query reads it, too
     * @param executors the executors that have followed it so far
     * @param skipped the ids that its reader passes over
     */
    record QueueEntry(
            String queue,
            int server,
            Position entry,
            boolean startsAnew,
            boolean shared,
            Set<String> executors,
            Set<Long> skipped)
            implements java.io.Serializable {}
}
