package busmq.spark.catalog;

import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A write with options of ours, whose only column is the value whatever it is called:
 * {@code INSERT INTO bus.orders VALUES ('…')}.
 */
public record BusmqLogicalWriteInfo(
        String queryId, StructType schema, CaseInsensitiveStringMap options)
        implements LogicalWriteInfo {
    /** A write with the options of the table added. */
    public BusmqLogicalWriteInfo(LogicalWriteInfo info, CaseInsensitiveStringMap options) {
        this(info.queryId(), withColumnNamedValue(info.schema()), options);
    }

    private static StructType withColumnNamedValue(StructType schema) {
        return schema.size() == 1
                ? new StructType()
                        .add(
                                "value",
                                schema.apply(0).dataType(),
                                schema.apply(0).nullable())
                : schema;
    }
}
