package busmq.spark;

import busmq.spark.sink.SinkBuilder;
import busmq.spark.source.BusmqScan;
import java.util.EnumSet;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Queues as a table: a stream of what comes, a snapshot of what is stored, and a place to append to. Which queues is in the options of each use. */
public final class BusmqTable implements SupportsRead, SupportsWrite {
    private static final Set<TableCapability> ABILITIES =
            Set.copyOf(EnumSet.of(TableCapability.MICRO_BATCH_READ, TableCapability.BATCH_READ, TableCapability.STREAMING_WRITE,
                    TableCapability.BATCH_WRITE, TableCapability.TRUNCATE, TableCapability.ACCEPT_ANY_SCHEMA));
    private final String name;
    private final StructType schema;

    public BusmqTable(String name, StructType schema) {
        this.name = name;
        this.schema = schema;
    }

    @Override
    public String name() {
        return name;
    }

    @SuppressWarnings("deprecation") // Spark asks for columns(), whose default takes them from here
    @Override
    public StructType schema() {
        return schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
        return ABILITIES;
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return () -> new BusmqScan(schema, options);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return new SinkBuilder(info);
    }
}
