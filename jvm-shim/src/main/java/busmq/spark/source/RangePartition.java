package busmq.spark.source;

import busmq.spark.core.Range;
import java.util.List;
import org.apache.spark.sql.connector.read.InputPartition;

/** What one task of a micro-batch, or of a snapshot, reads. */
record RangePartition(List<Range> ranges) implements InputPartition {}
