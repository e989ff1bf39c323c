package busmq.spark.options;

import busmq.spark.BusException;
import busmq.spark.Contract;
import busmq.spark.PyText;
import busmq.spark.core.Topic;
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
public record ReadOptions(RedisOptions redis, List<String> subscribe, String subscribePattern, List<String> topic, boolean includeTopic,
        Long partitions, Starting starting, Start startingTimestamp, String timestampStrategy, Starting ending, Start endingTimestamp,
        Long maxMessages, Long maxBytes, Long minMessages, long triggerDelayS, boolean discard, Long minPartitions, Long maxPerPartition,
        boolean includeTimestamp, List<String> jobFields, boolean failOnDataLoss, String ack, String subscription, boolean create, long ttlS, long idlePollMs,
        boolean requireNoEviction) implements Serializable {
    private static final Row<List<String>> SUBSCRIBE = Row.of("subscribe", Parsers::names, List.of());
    private static final Row<String> PATTERN = Row.of("subscribePattern", Parsers::pattern);
    static final Row<List<String>> TOPIC = Row.of("topic", Parsers::names, List.of());
    private static final Row<Boolean> INCLUDE_TOPIC = Row.of("includeTopic", Parsers::flag);
    static final Row<Long> PARTITIONS = Row.of("partitions", Parsers.whole(1, Contract.number("mostPartitions")));
    private static final Row<Starting> STARTING = Row.of("startingOffsets", Starting::parse, Starting.UNSAID);
    private static final Row<Start> STARTING_TIMESTAMP = Row.of("startingTimestamp", Start::timestamp);
    private static final Row<String> TIMESTAMP_STRATEGY = Row.of("startingOffsetsByTimestampStrategy", Parsers.oneOf("error", "earliest", "latest"));
    private static final Row<Starting> ENDING = Row.of("endingOffsets", Starting::ending, Starting.UNSAID);
    private static final Row<Start> ENDING_TIMESTAMP = Row.of("endingTimestamp", Start::timestamp);
    private static final Row<Long> MAX_MESSAGES = Row.of("maxMessagesPerTrigger", Parsers.whole(1));
    private static final Row<Long> MAX_BYTES = Row.of("maxBytesPerTrigger", Parsers::size);
    private static final Row<Long> MIN_MESSAGES = Row.of("minMessagesPerTrigger", Parsers.whole(1));
    private static final Row<Long> TRIGGER_DELAY = Row.of("maxTriggerDelay", Parsers::duration);
    private static final Row<Boolean> DISCARD = Row.of("discardBacklog", Parsers::flag);
    private static final Row<Long> MIN_PARTITIONS = Row.of("minPartitions", Parsers.whole(1));
    private static final Row<Long> MAX_PER_PARTITION = Row.of("maxMessagesPerPartition", Parsers.whole(1));
    private static final Row<Boolean> INCLUDE_TIMESTAMP = Row.of("includeTimestamp", Parsers::flag);
    private static final Row<List<String>> JOB_FIELDS = Row.of("jobFields", Parsers::names, List.of());
    private static final Row<Boolean> FAIL_ON_DATA_LOSS = Row.of("failOnDataLoss", Parsers::flag);
    private static final Row<String> ACK = Row.of("ack", Parsers.oneOf("commit", "none"));
    private static final Row<String> SUBSCRIPTION = Row.of("subscription", Parsers::subscription, "");
    private static final Row<Boolean> CREATE = Row.of("createQueue", Parsers::flag);
    private static final Row<Long> TTL = Row.of("ttl", Parsers::duration);
    private static final Row<Long> IDLE_POLL_MS = Row.of("idlePollMs", Parsers.whole(1));
    private static final OptionTable TABLE = new OptionTable("read", Stream.concat(RedisOptions.ROWS.stream(), Stream.of(SUBSCRIBE, PATTERN, TOPIC,
            INCLUDE_TOPIC, PARTITIONS, STARTING, STARTING_TIMESTAMP, TIMESTAMP_STRATEGY, ENDING, ENDING_TIMESTAMP, MAX_MESSAGES, MAX_BYTES, MIN_MESSAGES,
            TRIGGER_DELAY, DISCARD, MIN_PARTITIONS, MAX_PER_PARTITION, INCLUDE_TIMESTAMP, JOB_FIELDS, FAIL_ON_DATA_LOSS, ACK, SUBSCRIPTION, CREATE, TTL,
            IDLE_POLL_MS)).toList());

    /** The options a user gave. Throws {@link BusException} with code {@code BUSMQ_CONFIG}, before anything is connected. */
    public static ReadOptions parse(Map<String, String> given) {
        OptionTable.Values values = TABLE.parse(given);
        String pattern = values.get(PATTERN);
        ReadOptions options = new ReadOptions(RedisOptions.from(values), values.get(SUBSCRIBE),
                pattern == null || pattern.isEmpty() ? null : pattern, values.get(TOPIC), values.get(INCLUDE_TOPIC), values.get(PARTITIONS), values.get(STARTING),
                values.get(STARTING_TIMESTAMP), values.get(TIMESTAMP_STRATEGY), values.get(ENDING), values.get(ENDING_TIMESTAMP),
                values.get(MAX_MESSAGES), values.get(MAX_BYTES), values.get(MIN_MESSAGES), values.get(TRIGGER_DELAY), values.get(DISCARD), values.get(MIN_PARTITIONS), values.get(MAX_PER_PARTITION),
                values.get(INCLUDE_TIMESTAMP), values.get(JOB_FIELDS), values.get(FAIL_ON_DATA_LOSS), values.get(ACK), values.get(SUBSCRIPTION), values.get(CREATE), values.get(TTL),
                values.get(IDLE_POLL_MS), values.get(RedisOptions.REQUIRE_NO_EVICTION));
        options.check();
        return options;
    }

    private void check() {
        List<String> given = Stream.of(subscribe.isEmpty() ? "" : "subscribe", subscribePattern == null ? "" : "subscribePattern", topic.isEmpty() ? "" : "topic")
                .filter(name -> !name.isEmpty()).toList();
        if (given.size() != 1) {
            throw BusException.config("exactly one of 'subscribe', 'subscribePattern' and 'topic' names the queues to read; "
                    + (given.isEmpty() ? "none is" : String.join(" and ", given) + " are") + " given");
        }
        if (topic.isEmpty() && (includeTopic || partitions != null)) {
            throw BusException.config("option '" + (includeTopic ? "includeTopic" : "partitions")
                    + "' is for topics, and none is named: set option 'topic', or leave it out");
        }
        if (partitions != null && !create) {
            throw BusException.config(Contract.text("partitionsUnused"));
        }
        if (ack.equals("none") && !subscription.isEmpty()) {
            throw BusException.config("ack=none acknowledges nothing, so option 'subscription' has no meaning with it; leave one of them out");
        }
        if (ack.equals("none") && discard) {
            throw BusException.config("ack=none removes nothing, so discardBacklog=true has no meaning with it; leave one of them out");
        }
        if (starting.said() && startingTimestamp != null) {
            throw BusException.config("startingOffsets and startingTimestamp both say where to begin; leave one of them out");
        }
        if (ending.said() && endingTimestamp != null) {
            throw BusException.config("endingOffsets and endingTimestamp both say where to end; leave one of them out");
        }
        if (maxMessages != null && minMessages != null && minMessages > maxMessages) {
            throw BusException.config("minMessagesPerTrigger is " + minMessages + " and maxMessagesPerTrigger is " + maxMessages
                    + ": a batch would wait for messages that it may not have; lower the former, or raise the latter");
        }
        checkQueues("startingOffsets", starting);
        checkQueues("endingOffsets", ending);
    }

    private void checkQueues(String name, Starting starts) {
        Set<String> sources = new TreeSet<>(starts.sources().keySet());
        sources.remove("local");
        if (!sources.isEmpty()) {
            throw BusException.config(name + " names " + PyText.repr(sources.iterator().next()) + ", which is none of the sources local");
        }
        List<String> strange = new ArrayList<>(new TreeSet<>(starts.named()));
        strange.removeAll(subscribe);
        if (!subscribe.isEmpty() && !strange.isEmpty()) {
            throw BusException.config(name + " names " + PyText.repr(strange.get(0)) + ", which is not in subscribe");
        }
        strange.removeIf(queue -> topic.contains(queue) || topic.contains(topicOf(queue)));
        if (!topic.isEmpty() && !strange.isEmpty()) {
            throw BusException.config(name + " names " + PyText.repr(strange.get(0)) + ", which is neither in topic nor a partition queue of it");
        }
        starts.named().stream().filter(queue -> topic.contains(queue) && starts.of(queue).kind() == Start.Kind.ID).sorted().findFirst().ifPresent(each -> {
            throw BusException.config(name + " has an id for topic " + PyText.repr(each) + ", and an id is one of a queue: name partition queues, such as "
                    + each + "/0");
        });
    }

    /** What one of the options says of a queue, else of its topic. */
    private Start of(Starting starts, String queue) {
        Start found = starts.of(queue);
        return found != null || !topic.contains(topicOf(queue)) ? found : starts.of(topicOf(queue));
    }

    private static String topicOf(String queue) {
        Topic.Partition found = Topic.partition(queue);
        return found == null ? "" : found.topic();
    }

    /** Where reading begins in a queue. */
    public Start startOf(String queue) {
        Start found = askedStart(queue);
        return found == null ? Start.EARLIEST : found;
    }

    /** The same as far as a user has said it; null when nothing is said about the queue. */
    public Start askedStart(String queue) {
        return startingTimestamp != null ? startingTimestamp : of(starting, queue);
    }

    /** The option that says where reading begins in a queue, for people. */
    public String shownStart(String queue) {
        return (startingTimestamp != null ? "startingTimestamp=" : "startingOffsets=") + startOf(queue).text();
    }

    /** Where a batch read ends in a queue; an id is the last one that is read. */
    public Start endOf(String queue) {
        Start found = endingTimestamp != null ? endingTimestamp : of(ending, queue);
        return found == null ? Start.LATEST : found;
    }

    /** Whether reading begins elsewhere when it is asked for again later. */
    public boolean movesWithTime() {
        return Stream.of(Start.Kind.LATEST, Start.Kind.TIME, Start.Kind.NEWEST).anyMatch(starting::has) || startingTimestamp != null;
    }

    /** Whether an option says where to end, which only a batch read can. */
    public boolean ends() {
        return ending.said() || endingTimestamp != null;
    }

    /** What is read, for people. */
    public String queues() {
        return subscribePattern == null ? String.join(",", topic.isEmpty() ? subscribe : topic) : "/" + subscribePattern + "/";
    }
}
