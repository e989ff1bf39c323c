package busmq.spark.source;

import busmq.spark.core.Position;
import busmq.spark.core.Range;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * The ranges of one task of a micro-batch or of a snapshot; {@code ends} has the ends of the batch
 * in its queues.
 */
record RangePartition(List<Range> ranges, Map<String, Position> ends) implements InputPartition {
    /** Some of the ranges of a batch. */
    static RangePartition of(List<Range> ranges, Map<String, Position> goal) {
        Map<String, Position> ends = new HashMap<>();
        ranges.forEach(range -> ends.put(range.queue(), goal.get(range.queue())));
        return new RangePartition(ranges, ends);
    }
}
