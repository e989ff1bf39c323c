package busmq.spark.sink;

import busmq.spark.options.WriteOptions;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;

/** Travels to the tasks. {@code query} is empty for a batch write. */
record WriterFactory(WriteOptions options, SinkColumns columns, boolean staging, String query)
        implements StreamingDataWriterFactory, DataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
        String attempt = (query.isEmpty() ? "batch" : query) + ":" + epoch + ":" + partition + ":" + SinkStore.token();
        return new RowWriter(columns, staging ? TaskSink.staging(options, attempt) : TaskSink.pushing(options));
    }

    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task) {
        return createWriter(partition, task, 0);
    }
}
