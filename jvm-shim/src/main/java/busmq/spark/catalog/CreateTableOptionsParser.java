package busmq.spark.catalog;

import busmq.spark.BusException;
import busmq.spark.PyText;
import busmq.spark.options.WriteOptions;
import busmq.spark.source.SourceSchema;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableInfo;

/**
 * Parser of CREATE TABLE for a queue: its ttl and its maxsize, as TBLPROPERTIES or OPTIONS, and the
 * columns of a queue.
 */
public final class CreateTableOptionsParser {
    private static final Set<String> FORMATS = Set.of("busmq", "busmq-realtime");
    private static final Set<String> QUEUE_PROPERTIES = Set.of("ttl", "maxsize");
    /** Properties that Spark adds by itself. */
    private static final Set<String> SPARK_PROPERTIES = Set.of(
            TableCatalog.PROP_PROVIDER,
            TableCatalog.PROP_OWNER,
            TableCatalog.PROP_TABLE_TYPE,
            TableCatalog.PROP_IS_MANAGED_LOCATION);

    private CreateTableOptionsParser() {}

    /**
     * The options to create the queue with; {@code given} are those of the catalog. Throws
     * BUSMQ_CONFIG for what a queue cannot be.
     */
    public static WriteOptions parse(String queue, TableInfo info, Map<String, String> given) {
        SourceSchema.check(info.schema(), false);
        if (info.partitions().length > 0) {
            throw BusException.configError("a queue has no partitions; leave PARTITIONED BY out");
        }
        String provider = info.properties().getOrDefault(TableCatalog.PROP_PROVIDER, "busmq");
        if (!FORMATS.contains(provider)) {
            throw BusException.configError("a table of this catalog is a queue, and none of format "
                    + PyText.repr(provider) + "; leave USING out");
        }
        Map<String, String> all = new HashMap<>(given);
        all.put("queue", queue);
        all.putAll(queueProperties(info.properties()));
        return WriteOptions.parse(all);
    }

    private static Map<String, String> queueProperties(Map<String, String> properties) {
        Map<String, String> found = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
        properties.forEach((key, value) -> {
            String name = key.startsWith(TableCatalog.OPTION_PREFIX)
                    ? key.substring(TableCatalog.OPTION_PREFIX.length())
                    : key;
            if (QUEUE_PROPERTIES.stream().anyMatch(name::equalsIgnoreCase)) {
                found.put(name, value);
            } else if (!SPARK_PROPERTIES.contains(name)) {
                throw BusException.configError("property " + PyText.repr(name)
                        + " says nothing to a queue, which takes ttl and maxsize");
            }
        });
        return found;
    }
}
