package busmq.spark.options;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import java.io.Serializable;
import java.util.Map;
import java.util.stream.Stream;

/**
 * Options of the sink, as {@code options.WriteOptions} of the Python package, without federation.
 *
 * @param queue null: rows name theirs in a column, or go to topics
 * @param topic null: rows name theirs in a column, or go to queues
 * @param partitions of a topic that is made; null: none is
 * @param settle empty: rows are messages
 * @param delivery {@code exactly-once} or {@code at-least-once}
 * @param sink empty: the query's id
 * @param batch null: of no number
 * @param onChangedBatch {@code fail} or {@code keep}
 * @param onFull {@code block} or {@code fail}
 */
public record WriteOptions(
        RedisOptions redis,
        String queue,
        String topic,
        Long partitions,
        String settle,
        String delivery,
        String sink,
        Long batch,
        String onChangedBatch,
        String onFull,
        long fullTimeoutMs,
        boolean create,
        long ttlS,
        long maxsize,
        boolean truncate,
        boolean requireNoEviction)
        implements Serializable {
    private static final OptionRow<String> QUEUE = OptionRow.of("queue", Parsers::name);
    private static final OptionRow<String> TOPIC = OptionRow.of("topic", Parsers::name);
    private static final OptionRow<String> SETTLE =
            OptionRow.of("settle", Parsers::subscription, "");
    private static final OptionRow<String> DELIVERY =
            OptionRow.of("delivery", Parsers.oneOf("exactly-once", "at-least-once"));
    private static final OptionRow<String> SINK = OptionRow.of("sinkId", Parsers::name, "");
    private static final OptionRow<Long> BATCH = OptionRow.of("batchId", Parsers.whole(0));
    private static final OptionRow<String> ON_CHANGED_BATCH =
            OptionRow.of("onChangedBatch", Parsers.oneOf("fail", "keep"));
    private static final OptionRow<String> ON_FULL =
            OptionRow.of("onFull", Parsers.oneOf("block", "fail"));
    private static final OptionRow<Long> FULL_TIMEOUT_MS =
            OptionRow.of("fullTimeoutMs", Parsers.whole(0));
    private static final OptionRow<Boolean> CREATE = OptionRow.of("createQueue", Parsers::flag);
    private static final OptionRow<Long> TTL = OptionRow.of("ttl", Parsers::duration);
    private static final OptionRow<Long> MAXSIZE = OptionRow.of("maxsize", Parsers.whole(0));
    private static final OptionRow<Boolean> TRUNCATE = OptionRow.of("truncate", Parsers::flag);
    private static final OptionTable TABLE = new OptionTable(
            "write",
            Stream.concat(
                            RedisOptions.ROWS.stream(),
                            Stream.of(
                                    QUEUE,
                                    TOPIC,
                                    ReadOptions.PARTITIONS,
                                    SETTLE,
                                    DELIVERY,
                                    SINK,
                                    BATCH,
                                    ON_CHANGED_BATCH,
                                    ON_FULL,
                                    FULL_TIMEOUT_MS,
                                    CREATE,
                                    TTL,
                                    MAXSIZE,
                                    TRUNCATE))
                    .toList());

    /**
     * The options a user gave. Throws {@link busmq.spark.BusException} with code
     * {@code BUSMQ_CONFIG}, before anything is connected.
     */
    public static WriteOptions parse(Map<String, String> given) {
        OptionTable.Values values = TABLE.parse(given);
        String topic = values.get(TOPIC);
        Long partitions = values.get(ReadOptions.PARTITIONS);
        if (values.get(QUEUE) != null && (topic != null || partitions != null)) {
            throw BusException.configError(
                    "option 'queue' names a queue for every row, and option '"
                            + (topic != null ? "topic" : "partitions")
                            + "' is for topics; leave one of them out");
        }
        if (partitions != null && !values.get(CREATE)) {
            throw BusException.configError(SharedPythonConstants.text("partitionsUnused"));
        }
        boolean numbered = values.get(BATCH) != null;
        if (numbered
                && (values.get(SINK).isEmpty() || !values.get(DELIVERY).equals("exactly-once"))) {
            throw BusException.configError(
                    "batchId numbers the batches of a sink: it needs sinkId, the name of the sink,"
                            + " and delivery=exactly-once");
        }
        return new WriteOptions(
                RedisOptions.fromValues(values),
                values.get(QUEUE),
                topic,
                partitions,
                values.get(SETTLE),
                values.get(DELIVERY),
                values.get(SINK),
                values.get(BATCH),
                values.get(ON_CHANGED_BATCH),
                values.get(ON_FULL),
                values.get(FULL_TIMEOUT_MS),
                values.get(CREATE),
                values.get(TTL),
                values.get(MAXSIZE),
                values.get(TRUNCATE),
                values.get(RedisOptions.REQUIRE_NO_EVICTION));
    }
}
