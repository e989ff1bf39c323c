package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.options.WriteOptions;
import busmq.spark.store.EvictionCheck;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;

/**
 * The write side: streams and batches. Gap of the Python API: a Python sink cannot say that it
 * takes update mode, which real-time mode asks of every sink. Messages are never updated; an update
 * is one more message.
 */
public final class BusmqWriteBuilder
        implements WriteBuilder, SupportsTruncate, SupportsStreamingUpdateAsAppend {
    private final LogicalWriteInfo info;
    private boolean truncates;

    public BusmqWriteBuilder(LogicalWriteInfo info) {
        this.info = info;
    }

    @Override
    public WriteBuilder truncate() {
        truncates = true;
        return this;
    }

    /**
     * Throws BUSMQ_CONFIG for whatever is wrong with options or columns, before anything is
     * connected.
     */
    @Override
    public Write build() {
        WriteOptions options = WriteOptions.parse(info.options());
        SinkColumns columns = SinkColumns.of(info.schema(), options.queue(), options.topic());
        boolean explicit = info.options().containsKey("delivery");
        boolean asynchronous = info.options().getBoolean("asyncProgressTrackingEnabled", false);
        String query = info.queryId();
        String checkpoint = info.options().get("checkpointLocation");
        return new Write() {
            @Override
            public String description() {
                return "busmq[engine=java]";
            }

            @Override
            public BatchWrite toBatch() {
                checkOverwrite(options);
                EvictionCheck.checkEvictionPolicies(options.redis(), options.requireNoEviction());
                return new BusmqBatchWrite(options, columns, truncates);
            }

            @Override
            public StreamingWrite toStreaming() {
                if (options.batch() != null) {
                    throw BusException.configError(
                            "batchId is for batch writes; Spark numbers the batches of a stream."
                                    + " Leave it out");
                }
                EvictionCheck.checkOnce(
                        SparkContext.getOrCreate().getLocalProperty(WriterFactory.RUN_ID_PROPERTY),
                        options.redis(),
                        options.requireNoEviction());
                String place = CheckpointOffsetLog.find(query, checkpoint);
                return new BusmqStreamingWrite(
                        options, info.schema(), query, place, explicit, asynchronous);
            }
        };
    }

    /**
     * Only of a batch: a stream in complete mode is overwrite to Spark, too, and appends each
     * result, as Python's sink does.
     */
    private void checkOverwrite(WriteOptions options) {
        if (truncates && !options.truncate()) {
            throw BusException.configError(
                    "mode overwrite would delete what the queue holds; say truncate=true if that"
                            + " is meant, or use mode append");
        }
        if (truncates && options.batch() != null) {
            throw BusException.configError(
                    "a batch with a batchId is appended once, and mode overwrite would delete it"
                            + " when it comes again; use mode append");
        }
    }
}
