package busmq.spark.catalog;

import busmq.spark.BusException;
import busmq.spark.BusmqTable;
import busmq.spark.PyText;
import busmq.spark.core.QueueState;
import busmq.spark.source.SourceSchema;
import java.util.HashMap;
import java.util.List;
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
 * A queue or topic by its name: a {@link BusmqTable} with options that locate it. Streams may read
 * and write it, too.
 */
public final class BusmqCatalogTable implements SupportsRead, SupportsWrite {
    private final String catalog;
    private final String name;
    private final Map<String, String> redisOptions;
    private final boolean isTopic;
    private final Map<String, String> tableProperties;
    private final BusmqTable table;

    private BusmqCatalogTable(
            String catalog,
            String name,
            Map<String, String> redisOptions,
            boolean isTopic,
            Map<String, String> tableProperties) {
        this.catalog = catalog;
        this.name = name;
        this.redisOptions = redisOptions;
        this.isTopic = isTopic;
        this.tableProperties = tableProperties;
        table = new BusmqTable(
                name, SourceSchema.of(Map.of("includeTopic", String.valueOf(isTopic))), Map.of());
    }

    /** A queue in this state. */
    public static BusmqCatalogTable ofQueue(
            String catalog, String queue, Map<String, String> redis, QueueState state) {
        return new BusmqCatalogTable(
                catalog,
                queue,
                redis,
                false,
                Map.of(
                        "messages",
                        String.valueOf(state.count()),
                        "last.id",
                        String.valueOf(state.lastId()),
                        "ttl.s",
                        String.valueOf(state.ttlS())));
    }

    /** A topic with so many partitions. */
    public static BusmqCatalogTable ofTopic(
            String catalog, String topic, Map<String, String> redis, int partitions) {
        return new BusmqCatalogTable(
                catalog, topic, redis, true, Map.of("partitions", String.valueOf(partitions)));
    }

    @Override
    public String name() {
        return catalog + "." + name;
    }

    @SuppressWarnings("deprecation") // Spark asks for columns(), whose default takes them from here
    @Override
    public StructType schema() {
        return table.schema();
    }

    @Override
    public Set<TableCapability> capabilities() {
        return table.capabilities();
    }

    /**
     * The output of DESCRIBE EXTENDED: the queue or topic as it was when Spark looked the table up.
     */
    @Override
    public Map<String, String> properties() {
        Map<String, String> all = new TreeMap<>(tableProperties);
        all.put(TableCatalog.PROP_PROVIDER, "busmq-realtime");
        return all;
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return table.newScanBuilder(withName(
                options,
                isTopic ? "topic" : "subscribe",
                List.of("subscribe", "subscribePattern", "topic")));
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return table.newWriteBuilder(new BusmqLogicalWriteInfo(
                info,
                withName(info.options(), isTopic ? "topic" : "queue", List.of("queue", "topic"))));
    }

    /**
     * The options of one use, those of the catalog, and the table's own place; none of
     * {@code places} may be given beside it.
     */
    private CaseInsensitiveStringMap withName(
            CaseInsensitiveStringMap options, String place, List<String> places) {
        places.stream().filter(options::containsKey).findFirst().ifPresent(named -> {
            String of = named.equals("topic") ? "a topic" : "a queue";
            String found = named.equals("topic") == isTopic
                    ? ", and so does the table " + PyText.repr(name())
                    : ", and the table " + PyText.repr(name())
                            + (isTopic ? " a topic" : " a queue");
            throw BusException.configError("option " + PyText.repr(named) + " names " + of + found
                    + "; leave the option out");
        });
        Map<String, String> all = new HashMap<>(redisOptions);
        all.putAll(options.asCaseSensitiveMap());
        all.put(place, name);
        return new CaseInsensitiveStringMap(all);
    }
}
