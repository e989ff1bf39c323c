package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.ColumnNames;
import busmq.spark.SharedPythonConstants;
import busmq.spark.ErrorKind;
import busmq.spark.PyText;
import java.io.Serializable;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * The columns of the value and the queue of a row, with their positions. Option {@code queue} wins
 * over the column, as Kafka's {@code topic} does; then {@code queueColumn} is null and
 * {@code queueAt} -1.
 *
 * @param text whether values are strings
 * @param topic where rows go in topics; null where they go to queues
 */
public record SinkColumns(
        String valueColumn,
        int valueAt,
        boolean text,
        String queueColumn,
        int queueAt,
        String queue,
        TopicColumns topic)
        implements Serializable {
    private static final Map<String, String> EXPECTED_TYPES = Map.of(
            "value",
            "string or binary",
            "queue",
            "string",
            "topic",
            "string",
            "key",
            "string or binary",
            "partition",
            "int",
            "id",
            "bigint",
            "source",
            "string",
            "index",
            "int");

    /**
     * Throws BUSMQ_CONFIG for a missing or unknown column, two of one name, a wrong type, no queue
     * and no topic, or both. {@code queue} and {@code topic} are the options, of which one may be
     * given. Columns {@code id}, {@code index} and {@code source} are no part of a message.
     */
    public static SinkColumns of(StructType schema, String queue, String topic) {
        StructField[] fields = schema.fields();
        ColumnNames.refuseEqual(schema);
        Map<String, Integer> found = new HashMap<>();
        for (int i = 0; i < fields.length; i++) {
            found.put(fields[i].name().toLowerCase(Locale.ROOT), i);
        }
        if (!found.containsKey("value")) {
            String names = schema.isEmpty() ? "no columns" : String.join(", ", schema.fieldNames());
            throw BusException.configError("column 'value' is missing; the rows have: " + names);
        }
        Arrays.stream(fields).forEach(SinkColumns::checkColumn);
        int valueAt = found.get("value");
        boolean text = fields[valueAt].dataType() instanceof StringType;
        boolean keyIsText = found.containsKey("key")
                && fields[found.get("key")].dataType() instanceof StringType;
        TopicColumns ofTopic = TopicColumns.of(found, schema.fieldNames(), keyIsText, queue, topic);
        if (ofTopic != null) {
            return new SinkColumns(fields[valueAt].name(), valueAt, text, null, -1, null, ofTopic);
        }
        if (queue == null && !found.containsKey("queue")) {
            throw BusException.configError(
                    "no queue is named: set option 'queue', or give the rows a column queue; for a"
                            + " topic option or column topic");
        }
        int queueAt = queue == null ? found.get("queue") : -1;
        return new SinkColumns(
                fields[valueAt].name(),
                valueAt,
                text,
                queueAt < 0 ? null : fields[queueAt].name(),
                queueAt,
                queue,
                null);
    }

    private static void checkColumn(StructField column) {
        String name = column.name().toLowerCase(Locale.ROOT);
        DataType type = column.dataType();
        String wanted = EXPECTED_TYPES.get(name);
        if (wanted == null) {
            throw BusException.configError("column " + PyText.repr(column.name())
                    + " has no place; the sink takes value (string or binary) and queue (string), "
                    + "or for topics topic (string), partition (int) and key (string or binary)");
        }
        boolean fits =
                switch (name) {
                    case "value", "key" -> type instanceof StringType || type instanceof BinaryType;
                    case "id" -> type instanceof LongType;
                    case "index", "partition" -> type instanceof IntegerType;
                    default -> type instanceof StringType;
                };
        if (!fits) {
            String remedy =
                    name.equals("value") ? "; use to_json(struct(...)) for a structured value" : "";
            throw BusException.configError("column " + PyText.repr(column.name()) + " is "
                    + type.simpleString() + "; expected " + wanted + remedy);
        }
    }

    /** Throws BUSMQ_MESSAGE_REFUSED for a NULL in a row; rows count from 1 in their task. */
    public void checkNotNull(boolean valueIsNull, boolean queueIsNull, long row) {
        if (valueIsNull || queueIsNull) {
            throw nullError(valueIsNull ? valueColumn : queueColumn, row);
        }
    }

    static BusException nullError(String column, long row) {
        String remedy = SharedPythonConstants.text(
                column.equalsIgnoreCase("key") ? "nullKeyRemedy" : "nullTopicRemedy");
        return messageRefused("column " + PyText.repr(column) + " is NULL in row " + row
                + " of its task; " + remedy);
    }

    /** The name of a queue as a row has it. Throws BUSMQ_MESSAGE_REFUSED for an empty one. */
    public String checkQueueName(String name) {
        if (name.isEmpty()) {
            throw messageRefused("column " + PyText.repr(queueColumn)
                    + " is empty in some rows; expected the name of a queue");
        }
        return name;
    }

    static BusException messageRefused(String reason) {
        return BusException.of(ErrorKind.MESSAGE_REFUSED, "reason", reason);
    }
}
