package busmq.spark.source;

import busmq.spark.core.Position;
import java.util.Map;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;

/**
 * How far one reader came.
 *
 * @param executor where it ran; that process goes on to listen for a while
 * @param asked false when the engine never asked for a row: then the reader got no slot while the batch ran
 */
record RealTimeOffset(Map<String, Position> ends, String executor, boolean asked) implements PartitionOffset {}
