package busmq.spark;

import busmq.spark.options.EngineChoice;
import busmq.spark.options.ReadOptions;
import busmq.spark.python.PythonDataSourceDelegate;
import busmq.spark.source.SourceSchema;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * {@code format("busmq")} where the jar is on the class path: this module for what it can do, and
 * the Python data source of the same name for the rest; {@link EngineChoice} decides.
 *
 * <p>Spark takes a Java data source before a Python one of the same name, in silence. It makes one
 * of these for each use.
 */
public final class BusmqProvider implements TableProvider, DataSourceRegister {
    private PythonDataSourceDelegate python;

    @Override
    public String shortName() {
        return "busmq";
    }

    /**
     * Called at {@code load()} for a read without a schema from the user. Wrong options fail there,
     * with the errors of Python.
     */
    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        if (engine(options.asCaseSensitiveMap()) == EngineChoice.PYTHON) {
            return python().inferSchema(options);
        }
        if (!options.isEmpty()
                && options.keySet().stream()
                        .noneMatch(name -> name.startsWith(TableCatalog.OPTION_PREFIX))) {
            ReadOptions.parse(options.asCaseSensitiveMap());
        }
        return SourceSchema.of(options.asCaseSensitiveMap());
    }

    @Override
    public boolean supportsExternalMetadata() {
        return true; // a user's schema may leave columns out, and have value as a string
    }

    @Override
    public Table getTable(
            StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return engine(properties) == EngineChoice.PYTHON
                ? python().getTable(schema, partitioning, properties)
                : new BusmqTable(shortName(), schema, properties);
    }

    private static EngineChoice engine(Map<String, String> options) {
        SharedPythonConstants.refuseOtherJars();
        String setting = SQLConf.get().getConfString(EngineChoice.SETTING, null);
        return EngineChoice.of(
                options,
                setting,
                org.apache.spark.package$.MODULE$.SPARK_VERSION(),
                System.getenv());
    }

    /** One provider serves the schema and the table, since it caches the answers of Python. */
    private PythonDataSourceDelegate python() {
        if (python == null) {
            python = new PythonDataSourceDelegate(shortName());
        }
        return python;
    }
}
