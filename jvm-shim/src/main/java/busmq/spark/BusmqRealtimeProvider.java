package busmq.spark;

import busmq.spark.source.SourceSchema;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * {@code format("busmq-realtime")}: {@code format("busmq")} with {@code engine=java}, under the
 * name it had first; see {@link BusmqProvider}.
 */
public final class BusmqRealtimeProvider implements TableProvider, DataSourceRegister {
    @Override
    public String shortName() {
        return "busmq-realtime";
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return SourceSchema.of(options.asCaseSensitiveMap());
    }

    @Override
    public boolean supportsExternalMetadata() {
        return true; // a user's schema may leave columns out, and have value as a string
    }

    @Override
    public Table getTable(
            StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new BusmqTable(shortName(), schema, properties);
    }
}
