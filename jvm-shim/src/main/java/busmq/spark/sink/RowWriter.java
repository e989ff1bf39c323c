package busmq.spark.sink;

import java.io.IOException;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Rows of one task into its sink. A row is on its way when {@link #write} returns; {@link #commit}
 * waits until all have arrived.
 */
final class RowWriter implements DataWriter<InternalRow> {
    private final SinkColumns columns;
    private final TaskSink sink;
    private final RowOriginOrderChecker origins;
    private final TopicPartitioner topics;
    private final InternalRowColumns rowColumns = new InternalRowColumns();
    private long rows;
    private UTF8String lastName;
    private String lastQueue;

    /** {@code origins}: null where rows have none; {@code topics}: null where rows go to queues. */
    RowWriter(
            SinkColumns columns,
            TaskSink sink,
            RowOriginOrderChecker origins,
            TopicPartitioner topics) {
        this.columns = columns;
        this.sink = sink;
        this.origins = origins;
        this.topics = topics;
    }

    @Override
    public void write(InternalRow row) throws IOException {
        rows++;
        columns.checkNotNull(
                row.isNullAt(columns.valueAt()),
                columns.queueAt() >= 0 && row.isNullAt(columns.queueAt()),
                rows);
        String queue = topics != null
                ? topics.queueOf(rowColumns.useRow(row))
                : columns.queueAt() < 0 ? columns.queue() : queueOf(row);
        byte[] value = columns.text()
                ? row.getUTF8String(columns.valueAt()).getBytes()
                : row.getBinary(columns.valueAt());
        sink.add(queue, value, origins == null ? null : origins.checkedOrigin(row));
    }

    private String queueOf(InternalRow row) {
        UTF8String name = row.getUTF8String(columns.queueAt());
        if (!name.equals(lastName)) {
            lastName = name.copy();
            lastQueue = columns.checkQueueName(name.toString());
        }
        return lastQueue;
    }

    /** The row that is written now. */
    private static final class InternalRowColumns implements TopicPartitioner.Columns {
        private InternalRow row;
        private UTF8String lastName;
        private String lastText;

        InternalRowColumns useRow(InternalRow next) {
            row = next;
            return this;
        }

        @Override
        public boolean isNull(int at) {
            return row.isNullAt(at);
        }

        @Override
        public String text(int at) {
            UTF8String name = row.getUTF8String(at);
            if (!name.equals(lastName)) {
                lastName = name.copy();
                lastText = name.toString();
            }
            return lastText;
        }

        @Override
        public int number(int at) {
            return row.getInt(at);
        }

        @Override
        public byte[] bytes(int at, boolean text) {
            return text ? row.getUTF8String(at).getBytes() : row.getBinary(at);
        }
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
        TaskContext task = TaskContext.get();
        if (task != null && task.isInterrupted() && !sink.isStaging()) {
            // The query was stopped: the engine does not count this task, and an error would fill
            // its log.
            return SinkCommitMessage.EMPTY;
        }
        return sink.finishWithOutcome();
    }

    @Override
    public void abort() {
        sink.abort();
    }

    @Override
    public void close() {
        sink.close();
    }
}
