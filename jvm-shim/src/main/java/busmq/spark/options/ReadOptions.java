package busmq.spark.options;

import busmq.spark.BusException;
import busmq.spark.PyText;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Stream;

/**
 * Options of the source, as {@code options.ReadOptions} of the Python package, without federation. What was not given and has no default is
 * null.
 *
 * @param ack {@code commit} or {@code none}
 */
public record ReadOptions(RedisOptions redis, List<String> subscribe, String subscribePattern, Starting starting, Long maxMessages, Long maxBytes,
        boolean discard, Long minPartitions, Long maxPerPartition, boolean failOnDataLoss, String ack, String subscription, boolean create, long ttlS,
        long idlePollMs, boolean requireNoEviction) implements Serializable {
    private static final Row<List<String>> SUBSCRIBE = Row.of("subscribe", Parsers::names, List.of());
    private static final Row<String> PATTERN = Row.of("subscribePattern", Parsers::pattern);
    private static final Row<Starting> STARTING = Row.of("startingOffsets", Starting::parse, Starting.FIRST);
    private static final Row<Long> MAX_MESSAGES = Row.of("maxMessagesPerTrigger", Parsers.whole(1));
    private static final Row<Long> MAX_BYTES = Row.of("maxBytesPerTrigger", Parsers::size);
    private static final Row<Boolean> DISCARD = Row.of("discardBacklog", Parsers::flag);
    private static final Row<Long> MIN_PARTITIONS = Row.of("minPartitions", Parsers.whole(1));
    private static final Row<Long> MAX_PER_PARTITION = Row.of("maxMessagesPerPartition", Parsers.whole(1));
    private static final Row<Boolean> FAIL_ON_DATA_LOSS = Row.of("failOnDataLoss", Parsers::flag);
    private static final Row<String> ACK = Row.of("ack", Parsers.oneOf("commit", "none"));
    private static final Row<String> SUBSCRIPTION = Row.of("subscription", Parsers::subscription, "");
    private static final Row<Boolean> CREATE = Row.of("createQueue", Parsers::flag);
    private static final Row<Long> TTL = Row.of("ttl", Parsers::duration);
    private static final Row<Long> IDLE_POLL_MS = Row.of("idlePollMs", Parsers.whole(1));
    private static final OptionTable TABLE = new OptionTable("read", Stream.concat(RedisOptions.ROWS.stream(), Stream.of(SUBSCRIBE, PATTERN, STARTING,
            MAX_MESSAGES, MAX_BYTES, DISCARD, MIN_PARTITIONS, MAX_PER_PARTITION, FAIL_ON_DATA_LOSS, ACK, SUBSCRIPTION, CREATE, TTL,
            IDLE_POLL_MS)).toList());

    /** The options a user gave. Throws {@link BusException} with code {@code BUSMQ_CONFIG}, before anything is connected. */
    public static ReadOptions parse(Map<String, String> given) {
        OptionTable.Values values = TABLE.parse(given);
        String pattern = values.get(PATTERN);
        ReadOptions options = new ReadOptions(RedisOptions.from(values), values.get(SUBSCRIBE),
                pattern == null || pattern.isEmpty() ? null : pattern, values.get(STARTING),
                values.get(MAX_MESSAGES), values.get(MAX_BYTES), values.get(DISCARD), values.get(MIN_PARTITIONS), values.get(MAX_PER_PARTITION),
                values.get(FAIL_ON_DATA_LOSS), values.get(ACK), values.get(SUBSCRIPTION), values.get(CREATE), values.get(TTL),
                values.get(IDLE_POLL_MS), values.get(RedisOptions.REQUIRE_NO_EVICTION));
        options.check();
        return options;
    }

    private void check() {
        boolean both = !subscribe.isEmpty() && subscribePattern != null;
        if (both || (subscribe.isEmpty() && subscribePattern == null)) {
            throw BusException.config("exactly one of 'subscribe' and 'subscribePattern' names the queues to read; "
                    + (both ? "both are" : "neither is") + " given");
        }
        if (ack.equals("none") && !subscription.isEmpty()) {
            throw BusException.config("ack=none acknowledges nothing, so option 'subscription' has no meaning with it; leave one of them out");
        }
        if (ack.equals("none") && discard) {
            throw BusException.config("ack=none removes nothing, so discardBacklog=true has no meaning with it; leave one of them out");
        }
        Set<String> sources = new TreeSet<>(starting.sources().keySet());
        sources.remove("local");
        if (!sources.isEmpty()) {
            throw BusException.config("startingOffsets names " + PyText.repr(sources.iterator().next()) + ", which is none of the sources local");
        }
        List<String> strange = new ArrayList<>(new TreeSet<>(starting.named()));
        strange.removeAll(subscribe);
        if (!subscribe.isEmpty() && !strange.isEmpty()) {
            throw BusException.config("startingOffsets names " + PyText.repr(strange.get(0)) + ", which is not in subscribe");
        }
    }

    /** Where reading begins in a queue: {@link Starting#EARLIEST}, {@link Starting#LATEST}, or the last id that counts as read. */
    public long startOf(String queue) {
        return starting.of(queue);
    }

    /** What is read, for people. */
    public String queues() {
        return subscribePattern == null ? String.join(",", subscribe) : "/" + subscribePattern + "/";
    }
}
