package busmq.spark.source;

import busmq.spark.BusException;
import busmq.spark.PyText;
import busmq.spark.core.TopicPartitioning;
import busmq.spark.store.TimesOfIds;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Makes rows in the columns that were asked for. */
final class RowMaker {
    private final int width;
    private int queueAt = -1;
    private int idAt = -1;
    private int valueAt = -1;
    private int timeAt = -1;
    private int topicAt = -1;
    private int partitionAt = -1;
    private boolean valueIsText;
    private String lastQueue;
    private UTF8String lastQueueText;
    private UTF8String lastTopic;
    private int lastPartition;

    RowMaker(StructType schema) {
        width = schema.length();
        for (int i = 0; i < width; i++) {
            StructField column = schema.fields()[i];
            switch (column.name()) {
                case "queue" -> queueAt = i;
                case "id" -> idAt = i;
                case SourceSchema.TIMESTAMP -> timeAt = i;
                case "topic" -> topicAt = i;
                case "partition" -> partitionAt = i;
                default -> { // SourceSchema lets no other column in than value
                    valueAt = i;
                    valueIsText = column.dataType().equals(DataTypes.StringType);
                }
            }
        }
    }

    /** Whether rows have their time. */
    boolean hasTimestamp() {
        return timeAt >= 0;
    }

    InternalRow makeRow(String queue, long id, byte[] value, TimesOfIds times) {
        Object[] columns = new Object[width];
        cacheQueueColumns(queue);
        if (queueAt >= 0) {
            columns[queueAt] = lastQueueText;
        }
        if (topicAt >= 0) {
            columns[topicAt] = lastTopic;
        }
        if (partitionAt >= 0) {
            columns[partitionAt] = lastPartition;
        }
        if (idAt >= 0) {
            columns[idAt] = id;
        }
        if (valueAt >= 0) {
            columns[valueAt] = valueIsText ? checkedUtf8(queue, id, value) : value;
        }
        if (timeAt >= 0) {
            columns[timeAt] = times.micros(id);
        }
        return new GenericInternalRow(columns);
    }

    // Consecutive messages have the same String object; == saves the conversion to UTF8String.
    @SuppressWarnings("StringEquality")
    private void cacheQueueColumns(String queue) {
        if (queue == lastQueue) {
            return;
        }
        lastQueue = queue;
        lastQueueText = UTF8String.fromString(queue);
        if (topicAt >= 0 || partitionAt >= 0) {
            TopicPartitioning.Partition found = TopicPartitioning.topicPartition(queue);
            lastTopic = UTF8String.fromString(found.topic());
            lastPartition = found.number();
        }
    }

    private static UTF8String checkedUtf8(String queue, long id, byte[] value) {
        UTF8String found = UTF8String.fromBytes(value);
        if (!found.isValid()) {
            throw BusException.configError("queue " + PyText.repr(queue) + ": message " + id
                    + " is not UTF-8 text. Read value as binary");
        }
        return found;
    }
}
