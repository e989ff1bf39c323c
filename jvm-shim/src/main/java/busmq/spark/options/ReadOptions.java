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
        @OptionName("subscribe") List<String> subscribe,
        @OptionName("subscribePattern") String subscribePattern,
        @OptionName("topic") List<String> topic,
        @OptionName("includeTopic") boolean includeTopic,
        @OptionName("partitions") Long partitions,
        @OptionName("startingOffsets") OffsetsOption starting,
        @OptionName("startingTimestamp") OffsetBound startingTimestamp,
        @OptionName("startingOffsetsByTimestampStrategy") String timestampStrategy,
        @OptionName("endingOffsets") OffsetsOption ending,
        @OptionName("endingTimestamp") OffsetBound endingTimestamp,
        @OptionName("maxMessagesPerTrigger") Long maxMessages,
        @OptionName("maxBytesPerTrigger") Long maxBytes,
        @OptionName("minMessagesPerTrigger") Long minMessages,
        @OptionName("maxTriggerDelay") long triggerDelayS,
        @OptionName("discardBacklog") boolean discard,
        @OptionName("minPartitions") Long minPartitions,
        @OptionName("maxMessagesPerPartition") Long maxPerPartition,
        @OptionName("includeTimestamp") boolean includeTimestamp,
        @OptionName("jobFields") List<String> jobFields,
        @OptionName("failOnDataLoss") boolean failOnDataLoss,
        @OptionName("ack") String ack,
        @OptionName("subscription") String subscription,
        @OptionName("createQueue") boolean create,
        @OptionName("ttl") long ttlS,
        @OptionName("idlePollMs") long idlePollMs,
        @OptionName("requireNoEviction") boolean requireNoEviction)
        implements Serializable {
    private static final OptionTable<ReadOptions> TABLE =
            new OptionTable<>("read", ReadOptions.class);

    public ReadOptions {
        subscribePattern = "".equals(subscribePattern) ? null : subscribePattern;
    }

    /**
     * The options a user gave. Throws {@link BusException} with code {@code BUSMQ_CONFIG}, before
     * anything is connected.
     */
    public static ReadOptions parse(Map<String, String> given) {
        ReadOptions options = TABLE.parse(given);
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
