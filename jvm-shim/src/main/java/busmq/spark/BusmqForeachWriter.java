package busmq.spark;

import busmq.spark.options.WriteOptions;
import busmq.spark.sink.RealTimeMode;
import busmq.spark.sink.SinkColumns;
import busmq.spark.sink.TaskSink;
import busmq.spark.sink.TopicPartitioner;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.spark.sql.ForeachWriter;
import org.apache.spark.sql.Row;

/**
 * Rows into queues through {@code writeStream.foreach}: the one way to write with milliseconds of
 * latency that needs no setting of the engine, since its list of sinks for real-time mode has
 * foreach on it. At least once, in order. Options and columns are those of the sink.
 *
 * <p>From Python:
 * {@code df.writeStream._jwrite.foreach(spark._jvm.busmq.spark.BusmqForeachWriter(options))},
 * options a dictionary. Gap: a Python foreach is allowed in real-time mode, but its rows wait for
 * seconds in a buffer.
 */
public final class BusmqForeachWriter extends ForeachWriter<Row> {
    private final WriteOptions options;
    private transient TaskSink sink;
    private transient SinkColumns columns;
    private transient TopicPartitioner topics;
    private transient long firstPartition;
    private transient long rows;

    /**
     * Throws BUSMQ_CONFIG for a wrong option, before anything is connected. Columns are looked at
     * when the first row comes.
     */
    public BusmqForeachWriter(Map<String, String> options) {
        this.options = WriteOptions.parse(options);
        boolean asked = options.keySet().stream().anyMatch("delivery"::equalsIgnoreCase);
        if (asked && this.options.delivery().equals("exactly-once")) {
            throw RealTimeMode.notExactlyOnceError(
                    "foreach", "Leave the option out, or say at-least-once");
        }
    }

    @Override
    public boolean open(long partition, long epoch) {
        sink = TaskSink.toQueues(options);
        columns = null;
        rows = 0;
        firstPartition = partition + epoch;
        return true;
    }

    private record RowColumns(Row row) implements TopicPartitioner.Columns {
        @Override
        public boolean isNull(int at) {
            return row.isNullAt(at);
        }

        @Override
        public String text(int at) {
            return row.getString(at);
        }

        @Override
        public int number(int at) {
            return row.getInt(at);
        }

        @Override
        public byte[] bytes(int at, boolean text) {
            return text ? row.getString(at).getBytes(StandardCharsets.UTF_8) : row.getAs(at);
        }
    }

    @Override
    public void process(Row row) {
        if (columns == null) {
            columns = SinkColumns.of(row.schema(), options.queue(), options.topic());
            topics = new TopicPartitioner(options, columns, firstPartition);
        }
        columns.checkNotNull(
                row.isNullAt(columns.valueAt()),
                columns.queueAt() >= 0 && row.isNullAt(columns.queueAt()),
                ++rows);
        String queue = columns.topic() != null
                ? topics.queueOf(new RowColumns(row))
                : columns.queueAt() < 0
                        ? options.queue()
                        : columns.checkQueueName(row.getString(columns.queueAt()));
        try {
            sink.add(
                    queue,
                    columns.text()
                            ? row.getString(columns.valueAt()).getBytes(StandardCharsets.UTF_8)
                            : row.getAs(columns.valueAt()));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Override
    public void close(Throwable error) {
        if (sink == null) {
            return;
        }
        try (TaskSink closing = sink) {
            if (error == null) {
                closing.finish();
            }
        } catch (IOException stopped) {
            throw new UncheckedIOException(stopped);
        }
    }
}
