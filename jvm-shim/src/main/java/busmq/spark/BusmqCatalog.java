package busmq.spark;

import busmq.spark.catalog.CreateTableOptionsParser;
import busmq.spark.catalog.BusmqCatalogTable;
import busmq.spark.core.QueueState;
import busmq.spark.options.ReadOptions;
import busmq.spark.options.RedisOptions;
import busmq.spark.options.WriteOptions;
import busmq.spark.sink.QueueCreator;
import busmq.spark.store.ReadStore;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The queues of a bus, and its topics by their names, as tables:
 * {@code spark.sql.catalog.bus = busmq.spark.BusmqCatalog}, with
 * {@code spark.sql.catalog.bus.redis.url} and the other {@code redis.*} options beside it. Gap: a
 * catalog is a Java class.
 *
 * <p>SELECT is a snapshot, which removes nothing, INSERT appends, and CREATE TABLE makes a queue.
 * SQL removes none.
 */
public final class BusmqCatalog implements TableCatalog {
    private String name;
    private Map<String, String> catalogOptions;
    private RedisOptions redis;

    @Override
    public void initialize(String name, CaseInsensitiveStringMap options) {
        this.name = name;
        catalogOptions = Map.copyOf(options.asCaseSensitiveMap());
        catalogOptions.keySet().stream()
                .filter(key -> !key.toLowerCase(Locale.ROOT).startsWith("redis."))
                .findFirst()
                .ifPresent(key -> {
                    throw BusException.configError("spark.sql.catalog." + name + "." + key
                            + " says nothing to a catalog, which takes the redis.* options; "
                            + "options of a read or write belong to its statement: SELECT ... FROM "
                            + name + ".queue WITH (" + key + " = ...)");
                });
        Map<String, String> any = new HashMap<>(catalogOptions);
        any.put("subscribe", "any");
        redis = ReadOptions.parse(any).redis();
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
        if (namespace.length > 0) {
            throw new NoSuchNamespaceException(namespace);
        }
        try (ReadStore store = new ReadStore(redis)) {
            return store.discover(queue -> true).stream()
                    .map(queue -> Identifier.of(namespace, queue))
                    .toArray(Identifier[]::new);
        }
    }

    @Override
    public Table loadTable(Identifier table) throws NoSuchTableException {
        if (table.namespace().length == 0) {
            try (ReadStore store = new ReadStore(redis)) {
                QueueState state = store.states(Map.of(table.name(), -1L)).get(table.name());
                if (state.exists()) {
                    return BusmqCatalogTable.ofQueue(name, table.name(), catalogOptions, state);
                }
                int partitions = store.countPartitions(table.name());
                if (partitions > 0) {
                    return BusmqCatalogTable.ofTopic(
                            name, table.name(), catalogOptions, partitions);
                }
            }
        }
        throw new NoSuchTableException(table);
    }

    @Override
    public Table createTable(Identifier table, TableInfo info)
            throws TableAlreadyExistsException, NoSuchNamespaceException {
        if (table.namespace().length > 0) {
            throw new NoSuchNamespaceException(table.namespace());
        }
        WriteOptions options = CreateTableOptionsParser.parse(table.name(), info, catalogOptions);
        if (tableExists(table)) {
            throw new TableAlreadyExistsException(table);
        }
        QueueCreator.create(options, table.name());
        try {
            return loadTable(table);
        } catch (NoSuchTableException gone) {
            throw BusException.withCause(gone, ErrorKind.QUEUE_MISSING, "queue", table.name());
        }
    }

    @Override
    public Table alterTable(Identifier table, TableChange... changes) {
        throw readOnlyError(table, "changed");
    }

    @Override
    public boolean dropTable(Identifier table) {
        throw readOnlyError(table, "removed");
    }

    @Override
    public void renameTable(Identifier from, Identifier to) {
        throw readOnlyError(from, "renamed");
    }

    private BusException readOnlyError(Identifier table, String what) {
        return BusException.configError("queue " + PyText.repr(table.name()) + " is not " + what
                + " by SQL, which would reach messages that others wait for; "
                + "a queue goes when its ttl has run out");
    }
}
