package busmq.spark.source;

import busmq.spark.core.Position;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * What one reader follows in a batch of real-time mode.
 *
 * @param pollMs how often it asks Redis while no push is signalled
 * @param pin whether the batch only says where the query begins, and ends at once
 */
record RealTimePartition(List<Follow> queues, long pollMs, boolean pin) implements InputPartition {
    /**
     * One queue of it.
     *
     * @param entry where the batch begins
     * @param entered whether the queue enters the query here, or goes on after a loss
     * @param shared whether another source of the query reads it, too
     * @param heardBy the executors that have followed it so far
     */
    record Follow(String queue, int server, Position entry, boolean entered, boolean shared, Set<String> heardBy)
            implements java.io.Serializable {}
}
