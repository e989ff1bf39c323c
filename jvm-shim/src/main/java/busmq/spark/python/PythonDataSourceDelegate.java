package busmq.spark.python;

import busmq.spark.SharedPythonConstants;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The data source of the Python package, which Spark itself no longer finds where a Java one has
 * its name. It gets the version of this jar, and refuses one that is not its own.
 */
public final class PythonDataSourceDelegate {
    private static final String JAR_VERSION = SharedPythonConstants.text("jarVersionOption");

    private final PythonDataSourceV2 python = new PythonDataSourceV2();

    /** {@code name} is that of the Python data source. */
    public PythonDataSourceDelegate(String name) {
        python.setShortName(name);
    }

    /** The columns for these options; Spark starts a Python process to ask for them. */
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return python.inferSchema(withJarVersion(options));
    }

    /** The table with these columns. */
    public Table getTable(
            StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new PythonTable(python.getTable(schema, partitioning, properties));
    }

    private static CaseInsensitiveStringMap withJarVersion(CaseInsensitiveStringMap options) {
        Map<String, String> all = new HashMap<>(options.asCaseSensitiveMap());
        all.put(JAR_VERSION, SharedPythonConstants.version());
        return new CaseInsensitiveStringMap(all);
    }

    /** Spark's table of a Python data source, whose uses get the version of the jar, too. */
    private record PythonTable(Table table) implements SupportsRead, SupportsWrite {
        @Override
        public String name() {
            return table.name();
        }

        // Spark asks for columns(), whose default takes them from here.
        @SuppressWarnings("deprecation")
        @Override
        public StructType schema() {
            return table.schema();
        }

        @Override
        public Set<TableCapability> capabilities() {
            return table.capabilities();
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return ((SupportsRead) table).newScanBuilder(withJarVersion(options));
        }

        @Override
        public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
            return ((SupportsWrite) table)
                    .newWriteBuilder(new VersionedWrite(
                            info.queryId(), info.schema(), withJarVersion(info.options())));
        }

        @Override
        public String toString() {
            return "busmq[engine=python]";
        }
    }

    private record VersionedWrite(
            String queryId, StructType schema, CaseInsensitiveStringMap options)
            implements LogicalWriteInfo {}
}
