package busmq.spark.source;

import busmq.spark.core.Position;
import java.util.Map;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;

/**
 * The end positions of one reader.
 *
 * @param executor where it ran; that process goes on to listen for a while
 * @param fromMs when the engine asked for the first row, by the clock of its machine; 0 when it
 *     never did: then the reader got no slot while the batch ran
 * @param untilMs when the reader ended, by the same clock
 */
record RealTimeOffset(Map<String, Position> ends, String executor, long fromMs, long untilMs)
        implements PartitionOffset {
    boolean gotSlot() {
        return fromMs > 0;
    }
}
