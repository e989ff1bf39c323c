package busmq.spark.source;

import busmq.spark.BusException;
import busmq.spark.options.ReadOptions;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A scan of queues: batch, micro-batch or real time. Options and schema are checked here, before
 * anything is connected.
 */
public final class BusmqScan implements Scan {
    private final StructType schema;
    private final ReadOptions options;

    public BusmqScan(StructType schema, CaseInsensitiveStringMap options) {
        this.options = ReadOptions.parse(options.asCaseSensitiveMap());
        SourceSchema.check(schema, !this.options.topic().isEmpty());
        this.schema = schema;
        if (this.options.includeTimestamp() && !SourceSchema.hasTimestamp(schema)) {
            throw BusException.configError(
                    "includeTimestamp=true asks for a column timestamp, which the schema does not"
                            + " have; name it there, or leave the option out");
        }
    }

    @Override
    public StructType readSchema() {
        return schema;
    }

    @Override
    public String description() {
        return "busmq[engine=java " + options.describeQueues() + "]";
    }

    @Override
    public Batch toBatch() {
        return new SnapshotBatch(options, schema);
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
        if (options.hasEnd()) {
            throw BusException.configError(
                    "endingOffsets and endingTimestamp end a batch read, and a stream has no end;"
                            + " use spark.read, or trigger(availableNow=True)");
        }
        return new BusmqMicroBatchStream(options, schema, checkpointLocation);
    }
}
