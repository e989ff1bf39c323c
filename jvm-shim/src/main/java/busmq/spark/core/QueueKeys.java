package busmq.spark.core;

import busmq.spark.SharedPythonConstants;
import java.util.List;

/**
 * Every Redis key of one queue, as {@code queue/keys.py} spells them: the only place here that
 * spells a key.
 *
 * <p>{@code cluster} puts the base in braces, so that all keys of a queue share a slot.
 */
public record QueueKeys(String name, boolean cluster) {
    private static final String PREFIX = SharedPythonConstants.text("queuePrefix");
    private static final String TOPIC_PREFIX = SharedPythonConstants.text("topicPrefix");
    private static final String METADATA_SUFFIX = SharedPythonConstants.text("metadataSuffix");

    /** {@code bus:queue:<name>}, in braces for a cluster. */
    public String base() {
        return cluster ? "{" + PREFIX + name + "}" : PREFIX + name;
    }

    /** Hash; its existence is the existence of the queue. */
    public String metadata() {
        return base() + METADATA_SUFFIX;
    }

    /** List of id, value, id, value …; the head is the oldest. */
    public String messages() {
        return base() + ":messages";
    }

    /** Counter: the id given last. */
    public String msgid() {
        return base() + ":msgid";
    }

    /** Pair list of messages that a reliable consumer took and has not acked. */
    public String toack() {
        return base() + ":toack";
    }

    /** Pub/sub channel: a push happened. */
    public String available() {
        return base() + ":available";
    }

    /**
     * Hash: subscription → last acked id; field {@code :born} names the incarnation they belong to.
     */
    public String acks() {
        return base() + ":acks";
    }

    /**
     * Hash: how far each sink and each real-time query has come in this queue; its fields are in
     * {@code queue/keys.py}.
     */
    public String sinks() {
        return base() + ":sinks";
    }

    /**
     * List of time, id, time, id …: at that time, in milliseconds since 1970, the newest id was
     * that one.
     */
    public String clock() {
        return base() + ":clock";
    }

    /**
     * List of total, id, total, id … of a queue that keeps so many bytes of what is acknowledged:
     * all up to that id, so many bytes.
     */
    public String bytes() {
        return base() + ":bytes";
    }

    /** The four keys every peer touches and deletes, in the order of the protocol. */
    public List<String> peerKeys() {
        return List.of(metadata(), messages(), msgid(), toack());
    }

    /**
     * The shared keys and, where the queue has a clock, the keys that a push needs to note times
     * and to end retention. Queues of channels and services have none.
     */
    public List<String> appending() {
        boolean momentary = name().startsWith("channel:") || name().startsWith("service:");
        return momentary
                ? peerKeys()
                : List.of(metadata(), messages(), msgid(), toack(), clock(), acks(), bytes());
    }

    /** The keys that a script needs to delete messages beyond the retention limits. */
    public List<String> retentionKeys() {
        return List.of(metadata(), messages(), msgid(), acks(), clock(), bytes());
    }

    /** The four shared keys, then {@code acks}, {@code sinks}, {@code clock} and {@code bytes}. */
    public List<String> all() {
        return List.of(metadata(), messages(), msgid(), toack(), acks(), sinks(), clock(), bytes());
    }

    /** Hash: reader → its record and the last looks at its position (include/announce.lua). */
    public String readers() {
        return base() + ":readers";
    }

    /** String with a ttl: which query reads this queue, or this subscription of it. */
    public String lease(String subscription) {
        return base() + ":lease:" + subscription;
    }

    /** List of staged values of one task attempt; {@code attempt} must be unique for ever. */
    public String stage(String attempt) {
        return base() + ":stage:" + attempt;
    }

    /** Hash: attempt → epoch of the run that staged it, for the staged lists of one sink. */
    public String stages(String sink) {
        return base() + ":stages:" + sink;
    }

    /** The queue whose metadata key this is, or null when it is another kind of key. */
    public static String queueName(String metadataKey, boolean cluster) {
        String head = cluster ? "{" + PREFIX : PREFIX;
        String tail = cluster ? "}" + METADATA_SUFFIX : METADATA_SUFFIX;
        boolean whole = metadataKey.length() > head.length() + tail.length()
                && metadataKey.startsWith(head)
                && metadataKey.endsWith(tail);
        return whole
                ? metadataKey.substring(head.length(), metadataKey.length() - tail.length())
                : null;
    }

    /** SCAN pattern that matches the metadata key of every queue. */
    public static String metadataPattern(boolean cluster) {
        return cluster ? "{" + PREFIX + "*}" + METADATA_SUFFIX : PREFIX + "*" + METADATA_SUFFIX;
    }

    /** Hash {@code partitions}, {@code born}: a topic, beside its partition queues. */
    public static String topicKey(String name, boolean cluster) {
        return cluster ? "{" + TOPIC_PREFIX + name + "}" : TOPIC_PREFIX + name;
    }

    /** Pub/sub channel: the topic has grown. */
    public static String topicChangedChannel(String name, boolean cluster) {
        return topicKey(name, cluster) + ":changed";
    }

    /**
     * Hash {@code batch}, {@code manifest}: which staged lists make up the batch that a sink is
     * committing.
     */
    public static String sinkRecord(String sink) {
        return "bus:sink:" + sink;
    }

    /** Hash: queue → the last run of the sink that staged rows for it. */
    public static String sinkQueues(String sink) {
        return "bus:sink-queues:" + sink;
    }
}
