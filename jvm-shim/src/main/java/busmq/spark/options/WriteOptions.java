package busmq.spark.options;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import java.io.Serializable;
import java.util.Map;

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
        @OptionName("queue") String queue,
        @OptionName("topic") String topic,
        @OptionName("partitions") Long partitions,
        @OptionName("settle") String settle,
        @OptionName("delivery") String delivery,
        @OptionName("sinkId") String sink,
        @OptionName("batchId") Long batch,
        @OptionName("onChangedBatch") String onChangedBatch,
        @OptionName("onFull") String onFull,
        @OptionName("fullTimeoutMs") long fullTimeoutMs,
        @OptionName("createQueue") boolean create,
        @OptionName("ttl") long ttlS,
        @OptionName("maxsize") long maxsize,
        @OptionName("failOnDataLoss") boolean failOnDataLoss,
        @OptionName("truncate") boolean truncate,
        @OptionName("requireNoEviction") boolean requireNoEviction)
        implements Serializable {
    private static final OptionTable<WriteOptions> TABLE =
            new OptionTable<>("write", WriteOptions.class);

    /**
     * The options a user gave. Throws {@link busmq.spark.BusException} with code
     * {@code BUSMQ_CONFIG}, before anything is connected.
     */
    public static WriteOptions parse(Map<String, String> given) {
        WriteOptions options = TABLE.parse(given);
        options.check();
        return options;
    }

    private void check() {
        if (queue != null && (topic != null || partitions != null)) {
            throw BusException.configError(
                    "option 'queue' names a queue for every row, and option '"
                            + (topic != null ? "topic" : "partitions")
                            + "' is for topics; leave one of them out");
        }
        if (partitions != null && !create) {
            throw BusException.configError(SharedPythonConstants.text("partitionsUnused"));
        }
        if (batch != null && (sink.isEmpty() || !delivery.equals("exactly-once"))) {
            throw BusException.configError(
                    "batchId numbers the batches of a sink: it needs sinkId, the name of the sink,"
                            + " and delivery=exactly-once");
        }
    }
}
