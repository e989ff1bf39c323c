package busmq.spark.sink;

import busmq.spark.core.RandomToken;
import busmq.spark.options.WriteOptions;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;

/**
 * Is serialized to the tasks. {@code query} is empty for a batch write; {@code writeToken} is
 * unique to this write; {@code origins} is null but where rows are pushed exactly once.
 */
record WriterFactory(
        WriteOptions options,
        SinkColumns columns,
        boolean staging,
        RowOriginColumns origins,
        String query,
        String writeToken)
        implements StreamingDataWriterFactory, DataWriterFactory {
    /**
     * Local property: in a stream's tasks, and on the thread that runs its batches, the id of the
     * run of the query.
     */
    static final String RUN_ID_PROPERTY = "spark.jobGroup.id";

    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
        String attempt = (query.isEmpty() ? "batch" : query) + ":" + epoch + ":" + partition + ":"
                + RandomToken.next();
        TopicPartitioner topics = columns.topic() == null
                ? null
                : new TopicPartitioner(options, columns, epoch + partition);
        if (origins != null) {
            return new RowWriter(
                    columns,
                    TaskSink.toQueuesOnce(options, query),
                    new RowOriginOrderChecker(origins),
                    topics);
        }
        return new RowWriter(
                columns,
                staging
                        ? TaskSink.toStagedLists(options, sinkRun(), attempt)
                        : TaskSink.toQueues(options),
                null,
                topics);
    }

    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task) {
        return createWriter(partition, task, options.batch() == null ? 0 : options.batch());
    }

    private SinkRunId sinkRun() {
        if (query.isEmpty()) {
            return new SinkRunId(
                    options.batch() == null ? "write-" + writeToken : options.sink(), writeToken);
        }
        TaskContext task = TaskContext.get();
        String id = task == null ? null : task.getLocalProperty(RUN_ID_PROPERTY);
        return new SinkRunId(
                options.sink().isEmpty() ? query : options.sink(), id == null ? writeToken : id);
    }
}
