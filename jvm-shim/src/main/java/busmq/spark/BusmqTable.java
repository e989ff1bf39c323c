package busmq.spark;

import busmq.spark.catalog.BusmqLogicalWriteInfo;
import busmq.spark.options.EngineChoice;
import busmq.spark.sink.BusmqWriteBuilder;
import busmq.spark.source.BusmqScan;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Queues as a table: a stream of what comes, a snapshot of what is stored, and a place to append
 * to. The options of each use, or the OPTIONS of a CREATE TABLE, name the queues; of the latter
 * each use takes those that apply to it.
 */
public final class BusmqTable implements SupportsRead, SupportsWrite {
    private static final Set<TableCapability> CAPABILITIES = Set.copyOf(EnumSet.of(
            TableCapability.MICRO_BATCH_READ,
            TableCapability.BATCH_READ,
            TableCapability.STREAMING_WRITE,
            TableCapability.BATCH_WRITE,
            TableCapability.TRUNCATE,
            TableCapability.ACCEPT_ANY_SCHEMA));
    private final String name;
    private final StructType schema;
    private final Map<String, String> tableOptions = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);

    /**
     * {@code properties} are those of the table, with its OPTIONS; of {@code load()} and
     * {@code save()} they are the options of the use.
     */
    public BusmqTable(String name, StructType schema, Map<String, String> properties) {
        this.name = name;
        this.schema = schema;
        properties.forEach((key, value) -> {
            boolean option = key.startsWith(TableCatalog.OPTION_PREFIX);
            String plain = option ? key.substring(TableCatalog.OPTION_PREFIX.length()) : key;
            if (option
                    || SharedPythonConstants.takesOption("read", plain)
                    || SharedPythonConstants.takesOption("write", plain)) {
                tableOptions.put(plain, value); // others are Spark's
            }
        });
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
        return CAPABILITIES;
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return () -> new BusmqScan(schema, optionsFor("read", "write", options));
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        CaseInsensitiveStringMap all = optionsFor("write", "read", info.options());
        return new BusmqWriteBuilder(
                all.size() == info.options().size() ? info : new BusmqLogicalWriteInfo(info, all));
    }

    /** Spark shows it as the name of a sink, in the progress of a query. */
    @Override
    public String toString() {
        return "busmq[engine=java]";
    }

    /**
     * The options of one use, before those of the table, without what is for the other use only.
     */
    private CaseInsensitiveStringMap optionsFor(
            String use, String other, CaseInsensitiveStringMap given) {
        Map<String, String> all = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
        tableOptions.forEach((name, value) -> {
            if (SharedPythonConstants.takesOption(use, name)
                    || !SharedPythonConstants.takesOption(other, name)) {
                all.put(name, value);
            }
        });
        all.putAll(given.asCaseSensitiveMap());
        EngineChoice.requireJava(all, org.apache.spark.package$.MODULE$.SPARK_VERSION());
        return new CaseInsensitiveStringMap(all);
    }
}
