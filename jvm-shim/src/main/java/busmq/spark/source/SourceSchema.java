package busmq.spark.source;

import busmq.spark.BusException;
import busmq.spark.PyText;
import java.util.Set;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** The columns of the source. */
public final class SourceSchema {
    public static final StructType FULL =
            new StructType().add("queue", DataTypes.StringType).add("id", DataTypes.LongType).add("value", DataTypes.BinaryType);
    private static final Set<DataType> TEXT_OR_BYTES = Set.of(DataTypes.BinaryType, DataTypes.StringType);

    private SourceSchema() {}

    /** Throws BUSMQ_CONFIG unless a schema that a user asked for has only our columns with types they can have, in any order. */
    public static void check(StructType schema) {
        for (StructField column : schema.fields()) {
            if (!FULL.getFieldIndex(column.name()).isDefined()) {
                throw BusException.config("column " + PyText.repr(column.name())
                        + " does not exist; the source has: queue string, id long, value binary (value may be string)");
            }
            DataType type = FULL.apply(column.name()).dataType();
            boolean fits = column.name().equals("value") ? TEXT_OR_BYTES.contains(column.dataType()) : type.equals(column.dataType());
            if (!fits) {
                String wanted = column.name().equals("value") ? "binary or string" : type.simpleString();
                throw BusException.config("column " + PyText.repr(column.name()) + " is " + column.dataType().simpleString() + "; expected " + wanted);
            }
        }
    }
}
