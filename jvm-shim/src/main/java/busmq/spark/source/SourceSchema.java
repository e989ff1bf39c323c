package busmq.spark.source;

import busmq.spark.BusException;
import busmq.spark.ColumnNames;
import busmq.spark.PyText;
import busmq.spark.options.EngineChoice;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * The columns of the source: {@link #QUEUE_COLUMNS}, and those of topics and times where they are
 * asked for.
 */
public final class SourceSchema {
    public static final StructType QUEUE_COLUMNS = new StructType()
            .add("queue", DataTypes.StringType)
            .add("id", DataTypes.LongType)
            .add("value", DataTypes.BinaryType);
    /** The column with the time of a message. */
    static final String TIMESTAMP = "timestamp";

    private static final StructType TOPIC_COLUMNS = QUEUE_COLUMNS
            .add("topic", DataTypes.StringType)
            .add("partition", DataTypes.IntegerType);
    private static final Set<DataType> TEXT_OR_BYTES =
            Set.of(DataTypes.BinaryType, DataTypes.StringType);

    private SourceSchema() {}

    /**
     * Return the columns for these options, or properties of a table; wrong options fail when they
     * are parsed.
     */
    public static StructType of(Map<String, String> given) {
        Map<String, String> options = EngineChoice.withoutTableOptionPrefix(given);
        StructType found = isTrue(options, "includeTopic") ? TOPIC_COLUMNS : QUEUE_COLUMNS;
        return isTrue(options, "includeTimestamp")
                ? found.add(TIMESTAMP, DataTypes.TimestampType)
                : found;
    }

    private static boolean isTrue(Map<String, String> options, String name) {
        return options.getOrDefault(name, "").strip().equalsIgnoreCase("true");
    }

    /** Whether rows shall have their time. */
    static boolean hasTimestamp(StructType schema) {
        return schema.getFieldIndex(TIMESTAMP).isDefined();
    }

    /**
     * Throws BUSMQ_CONFIG unless a schema that a user asked for has only our columns with types
     * they can have, in any order. {@code topics}: whether the query reads topics.
     */
    public static void check(StructType schema, boolean topics) {
        StructType known =
                (topics ? TOPIC_COLUMNS : QUEUE_COLUMNS).add(TIMESTAMP, DataTypes.TimestampType);
        ColumnNames.refuseEqual(schema);
        for (StructField column : schema.fields()) {
            if (!known.getFieldIndex(column.name()).isDefined()) {
                throw BusException.configError("column " + PyText.repr(column.name())
                        + " does not exist; the source has: queue string, id long, value binary"
                        + (topics ? ", topic string, partition int" : "")
                        + ", timestamp timestamp (value may be string)");
            }
            DataType type = known.apply(column.name()).dataType();
            boolean fits = column.name().equals("value")
                    ? TEXT_OR_BYTES.contains(column.dataType())
                    : type.equals(column.dataType());
            if (!fits) {
                String wanted =
                        column.name().equals("value") ? "binary or string" : type.simpleString();
                throw BusException.configError("column " + PyText.repr(column.name()) + " is "
                        + column.dataType().simpleString() + "; expected " + wanted);
            }
        }
    }
}
