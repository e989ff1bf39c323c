package busmq.spark.options;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.PyText;
import busmq.spark.core.TopicPartitioning;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Stream;

/**
 * Options of the source, as {@code options.ReadOptions} of the Python package, without federation.
 * An option without a value and without a default is null.
 *
 * @param ack {@code commit} or {@code none}
 */
public record ReadOptions(
        RedisOptions redis,
        List<String> subscribe,
        String subscribePattern,
        List<String> topic,
        boolean includeTopic,
        Long partitions,
        OffsetsOption starting,
        OffsetBound startingTimestamp,
        String timestampStrategy,
        OffsetsOption ending,
        OffsetBound endingTimestamp,
        Long maxMessages,
        Long maxBytes,
        Long minMessages,
        long triggerDelayS,
        boolean discard,
        Long minPartitions,
        Long maxPerPartition,
        boolean includeTimestamp,
        List<String> jobFields,
        boolean failOnDataLoss,
        String ack,
        String subscription,
        boolean create,
        long ttlS,
        long idlePollMs,
        boolean requireNoEviction)
        implements Serializable {
    private static final OptionRow<List<String>> SUBSCRIBE =
            OptionRow.of("subscribe", Parsers::names, List.of());
    private static final OptionRow<String> PATTERN =
            OptionRow.of("subscribePattern", Parsers::pattern);
    static final OptionRow<List<String>> TOPIC = OptionRow.of("topic", Parsers::names, List.of());
    private static final OptionRow<Boolean> INCLUDE_TOPIC =
            OptionRow.of("includeTopic", Parsers::flag);
    static final OptionRow<Long> PARTITIONS = OptionRow.of(
            "partitions", Parsers.whole(1, SharedPythonConstants.number("maxPartitions")));
    private static final OptionRow<OffsetsOption> STARTING =
            OptionRow.of("startingOffsets", OffsetsOption::parse, OffsetsOption.NOT_GIVEN);
    private static final OptionRow<OffsetBound> STARTING_TIMESTAMP =
            OptionRow.of("startingTimestamp", OffsetBound::timestamp);
    private static final OptionRow<String> TIMESTAMP_STRATEGY = OptionRow.of(
            "startingOffsetsByTimestampStrategy", Parsers.oneOf("error", "earliest", "latest"));
    private static final OptionRow<OffsetsOption> ENDING =
            OptionRow.of("endingOffsets", OffsetsOption::parseEnding, OffsetsOption.NOT_GIVEN);
    private static final OptionRow<OffsetBound> ENDING_TIMESTAMP =
            OptionRow.of("endingTimestamp", OffsetBound::timestamp);
    private static final OptionRow<Long> MAX_MESSAGES =
            OptionRow.of("maxMessagesPerTrigger", Parsers.whole(1));
    private static final OptionRow<Long> MAX_BYTES =
            OptionRow.of("maxBytesPerTrigger", Parsers::size);
    private static final OptionRow<Long> MIN_MESSAGES =
            OptionRow.of("minMessagesPerTrigger", Parsers.whole(1));
    private static final OptionRow<Long> TRIGGER_DELAY =
            OptionRow.of("maxTriggerDelay", Parsers::duration);
    private static final OptionRow<Boolean> DISCARD = OptionRow.of("discardBacklog", Parsers::flag);
    private static final OptionRow<Long> MIN_PARTITIONS =
            OptionRow.of("minPartitions", Parsers.whole(1));
    private static final OptionRow<Long> MAX_PER_PARTITION =
            OptionRow.of("maxMessagesPerPartition", Parsers.whole(1));
    private static final OptionRow<Boolean> INCLUDE_TIMESTAMP =
            OptionRow.of("includeTimestamp", Parsers::flag);
    private static final OptionRow<List<String>> JOB_FIELDS =
            OptionRow.of("jobFields", Parsers::names, List.of());
    private static final OptionRow<Boolean> FAIL_ON_DATA_LOSS =
            OptionRow.of("failOnDataLoss", Parsers::flag);
    private static final OptionRow<String> ACK =
            OptionRow.of("ack", Parsers.oneOf("commit", "none"));
    private static final OptionRow<String> SUBSCRIPTION =
            OptionRow.of("subscription", Parsers::subscription, "");
    private static final OptionRow<Boolean> CREATE = OptionRow.of("createQueue", Parsers::flag);
    private static final OptionRow<Long> TTL = OptionRow.of("ttl", Parsers::duration);
    private static final OptionRow<Long> IDLE_POLL_MS =
            OptionRow.of("idlePollMs", Parsers.whole(1));
    private static final OptionTable TABLE = new OptionTable(
            "read",
            Stream.concat(
                            RedisOptions.ROWS.stream(),
                            Stream.of(
                                    SUBSCRIBE,
                                    PATTERN,
                                    TOPIC,
                                    INCLUDE_TOPIC,
                                    PARTITIONS,
                                    STARTING,
                                    STARTING_TIMESTAMP,
                                    TIMESTAMP_STRATEGY,
                                    ENDING,
                                    ENDING_TIMESTAMP,
                                    MAX_MESSAGES,
                                    MAX_BYTES,
                                    MIN_MESSAGES,
                                    TRIGGER_DELAY,
                                    DISCARD,
                                    MIN_PARTITIONS,
                                    MAX_PER_PARTITION,
                                    INCLUDE_TIMESTAMP,
                                    JOB_FIELDS,
                                    FAIL_ON_DATA_LOSS,
                                    ACK,
                                    SUBSCRIPTION,
                                    CREATE,
                                    TTL,
                                    IDLE_POLL_MS))
                    .toList());

    /**
     * The options a user gave. Throws {@link BusException} with code {@code BUSMQ_CONFIG}, before
     * anything is connected.
     */
    public static ReadOptions parse(Map<String, String> given) {
        OptionTable.Values values = TABLE.parse(given);
        String pattern = values.get(PATTERN);
        ReadOptions options = new ReadOptions(
                RedisOptions.fromValues(values),
                values.get(SUBSCRIBE),
                pattern == null || pattern.isEmpty() ? null : pattern,
                values.get(TOPIC),
                values.get(INCLUDE_TOPIC),
                values.get(PARTITIONS),
                values.get(STARTING),
                values.get(STARTING_TIMESTAMP),
                values.get(TIMESTAMP_STRATEGY),
                values.get(ENDING),
                values.get(ENDING_TIMESTAMP),
                values.get(MAX_MESSAGES),
                values.get(MAX_BYTES),
                values.get(MIN_MESSAGES),
                values.get(TRIGGER_DELAY),
                values.get(DISCARD),
                values.get(MIN_PARTITIONS),
                values.get(MAX_PER_PARTITION),
                values.get(INCLUDE_TIMESTAMP),
                values.get(JOB_FIELDS),
                values.get(FAIL_ON_DATA_LOSS),
                values.get(ACK),
                values.get(SUBSCRIPTION),
                values.get(CREATE),
                values.get(TTL),
                values.get(IDLE_POLL_MS),
                values.get(RedisOptions.REQUIRE_NO_EVICTION));
        options.check();
        return options;
    }

    private void check() {
        List<String> given = Stream.of(
                        subscribe.isEmpty() ? "" : "subscribe",
                        subscribePattern == null ? "" : "subscribePattern",
                        topic.isEmpty() ? "" : "topic")
                .filter(name -> !name.isEmpty())
                .toList();
        if (given.size() != 1) {
            throw BusException.configError(
                    "exactly one of 'subscribe', 'subscribePattern' and 'topic' names the queues"
                            + " to read; "
                            + (given.isEmpty() ? "none is" : String.join(" and ", given) + " are")
                            + " given");
        }
        if (topic.isEmpty() && (includeTopic || partitions != null)) {
            throw BusException.configError(
                    "option '" + (includeTopic ? "includeTopic" : "partitions")
                            + "' is for topics, and none is named: set option 'topic', or leave it"
                            + " out");
        }
        if (partitions != null && !create) {
            throw BusException.configError(SharedPythonConstants.text("partitionsUnused"));
        }
        if (ack.equals("none") && !subscription.isEmpty()) {
            throw BusException.configError(
                    "ack=none acknowledges nothing, so option 'subscription' has no meaning with"
                            + " it; leave one of them out");
        }
        if (ack.equals("none") && discard) {
            throw BusException.configError(
                    "ack=none removes nothing, so discardBacklog=true has no meaning with it;"
                            + " leave one of them out");
        }
        if (starting.isGiven() && startingTimestamp != null) {
            throw BusException.configError(
                    "startingOffsets and startingTimestamp both say where to begin; leave one of"
                            + " them out");
        }
        if (ending.isGiven() && endingTimestamp != null) {
            throw BusException.configError(
                    "endingOffsets and endingTimestamp both say where to end; leave one of them"
                            + " out");
        }
        if (maxMessages != null && minMessages != null && minMessages > maxMessages) {
            throw BusException.configError(
                    "minMessagesPerTrigger is " + minMessages + " and maxMessagesPerTrigger is "
                            + maxMessages
                            + ": a batch would wait for messages that it may not have; lower the"
                            + " former, or raise the latter");
        }
        checkQueues("startingOffsets", starting);
        checkQueues("endingOffsets", ending);
    }

    private void checkQueues(String name, OffsetsOption starts) {
        Set<String> sources = new TreeSet<>(starts.sources().keySet());
        sources.remove("local");
        if (!sources.isEmpty()) {
            throw BusException.configError(
                    name + " names " + PyText.repr(sources.iterator().next())
                            + ", which is none of the sources local");
        }
        List<String> strange = new ArrayList<>(new TreeSet<>(starts.queueNames()));
        strange.removeAll(subscribe);
        if (!subscribe.isEmpty() && !strange.isEmpty()) {
            throw BusException.configError(
                    name + " names " + PyText.repr(strange.get(0)) + ", which is not in subscribe");
        }
        strange.removeIf(queue -> topic.contains(queue) || topic.contains(topicOf(queue)));
        if (!topic.isEmpty() && !strange.isEmpty()) {
            throw BusException.configError(name + " names " + PyText.repr(strange.get(0))
                    + ", which is neither in topic nor a partition queue of it");
        }
        starts.queueNames().stream()
                .filter(queue ->
                        topic.contains(queue) && starts.of(queue).kind() == OffsetBound.Kind.ID)
                .sorted()
                .findFirst()
                .ifPresent(each -> {
                    throw BusException.configError(
                            name + " has an id for topic " + PyText.repr(each)
                                    + ", and an id is one of a queue: name partition queues, such"
                                    + " as "
                                    + each + "/0");
                });
    }

    /** Return the bound that an option gives for a queue, else for its topic. */
    private OffsetBound startOrTopicStart(OffsetsOption starts, String queue) {
        OffsetBound found = starts.of(queue);
        return found != null || !topic.contains(topicOf(queue)) ? found : starts.of(topicOf(queue));
    }

    private static String topicOf(String queue) {
        TopicPartitioning.Partition found = TopicPartitioning.topicPartition(queue);
        return found == null ? "" : found.topic();
    }

    /** Return the start of reading in a queue. */
    public OffsetBound startOf(String queue) {
        OffsetBound found = askedStart(queue);
        return found == null ? OffsetBound.EARLIEST : found;
    }

    /** Return the start that the user has given for a queue; null for none. */
    public OffsetBound askedStart(String queue) {
        return startingTimestamp != null ? startingTimestamp : startOrTopicStart(starting, queue);
    }

    /** The option that says where reading begins in a queue, for people. */
    public String shownStart(String queue) {
        return (startingTimestamp != null ? "startingTimestamp=" : "startingOffsets=")
                + startOf(queue).text();
    }

    /** Return the end of a batch read in a queue; an id is inclusive. */
    public OffsetBound endOf(String queue) {
        OffsetBound found =
                endingTimestamp != null ? endingTimestamp : startOrTopicStart(ending, queue);
        return found == null ? OffsetBound.LATEST : found;
    }

    /** Whether reading begins elsewhere when it is asked for again later. */
    public boolean startDependsOnTime() {
        return Stream.of(OffsetBound.Kind.LATEST, OffsetBound.Kind.TIME, OffsetBound.Kind.NEWEST)
                        .anyMatch(starting::hasKind)
                || startingTimestamp != null;
    }

    /** Whether an option says where to end, which only a batch read can. */
    public boolean hasEnd() {
        return ending.isGiven() || endingTimestamp != null;
    }

    /** Return a description of the queues, for people. */
    public String describeQueues() {
        return subscribePattern == null
                ? String.join(",", topic.isEmpty() ? subscribe : topic)
                : "/" + subscribePattern + "/";
    }
}
