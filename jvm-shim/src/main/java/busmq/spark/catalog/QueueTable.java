package busmq.spark.catalog;

import busmq.spark.BusException;
import busmq.spark.BusmqTable;
import busmq.spark.PyText;
import busmq.spark.core.QueueState;
import busmq.spark.source.SourceSchema;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** One queue by its name: a {@link BusmqTable} whose options say where it is. Streams may read and write it, too. */
public final class QueueTable implements SupportsRead, SupportsWrite {
    private final String catalog;
    private final String queue;
    private final Map<String, String> redis;
    private final QueueState state;
    private final BusmqTable table;

    public QueueTable(String catalog, String queue, Map<String, String> redis, QueueState state) {
        this.catalog = catalog;
        this.queue = queue;
        this.redis = redis;
        this.state = state;
        table = new BusmqTable(queue, SourceSchema.FULL, Map.of());
    }

    @Override
    public String name() {
        return catalog + "." + queue;
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

    /** The output of DESCRIBE EXTENDED: the queue as it was when Spark looked the table up. */
    @Override
    public Map<String, String> properties() {
        Map<String, String> known = new TreeMap<>();
        known.put(TableCatalog.PROP_PROVIDER, "busmq-realtime");
        known.put("messages", String.valueOf(state.count()));
        known.put("last.id", String.valueOf(state.lastId()));
        known.put("ttl.s", String.valueOf(state.ttlS()));
        return known;
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return table.newScanBuilder(with(options, "subscribe", "subscribePattern", "topic"));
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return table.newWriteBuilder(new ValueColumnWrite(info, with(info.options(), "queue", "topic")));
    }

    /** The options of one use, those of the catalog, and the queue. */
    private CaseInsensitiveStringMap with(CaseInsensitiveStringMap options, String place, String... others) {
        Stream.concat(Stream.of(place), Stream.of(others)).filter(options::containsKey).findFirst().ifPresent(named -> {
            String found = named.equals("topic") ? " names a topic, and the table " + PyText.repr(name()) + " is a queue"
                    : " names a queue, and so does the table " + PyText.repr(name());
            throw BusException.config("option " + PyText.repr(named) + found + "; leave the option out");
        });
        Map<String, String> all = new HashMap<>(redis);
        all.putAll(options.asCaseSensitiveMap());
        all.put(place, queue);
        return new CaseInsensitiveStringMap(all);
    }
}
