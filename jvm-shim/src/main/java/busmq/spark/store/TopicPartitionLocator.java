package busmq.spark.store;

import busmq.spark.core.RandomToken;
import static busmq.spark.store.ReadStore.text;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.ErrorKind;
import busmq.spark.PyText;
import busmq.spark.core.QueueKeys;
import busmq.spark.core.ServerIndex;
import busmq.spark.core.TopicPartitioning;
import busmq.spark.redis.RedisCall;
import busmq.spark.redis.RedisLink;
import busmq.spark.redis.RedisLinks;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The records of topics in Redis. For one thread, with its links. */
public final class TopicPartitionLocator {
    private static final long TOPIC_RECORD_TTL_S = SharedPythonConstants.number("topicRecordTtlS");

    private final RedisLinks links;
    private final boolean cluster;

    public TopicPartitionLocator(RedisLinks links, boolean cluster) {
        this.links = links;
        this.cluster = cluster;
    }

    /**
     * Return the number of partitions of a topic and touch the topic; create it with {@code create}
     * partitions where it does not exist. Throws BUSMQ_TOPIC_MISSING where {@code create} is null.
     */
    public int findOrCreate(String topic, Long create) {
        String key = QueueKeys.topicKey(TopicPartitioning.checkTopic(topic), cluster);
        RedisLink home = links.link(ServerIndex.of(key, links.links().size()));
        Object[] args = {
            create == null ? 0 : create,
            RandomToken.next(),
            0,
            TOPIC_RECORD_TTL_S,
            QueueKeys.topicChangedChannel(topic, cluster)
        };
        Object reply;
        try {
            RedisCall open = RedisCall.script("topic", List.of(key), args);
            reply = home.run(create == null ? open.asOptional() : open);
        } catch (BusException error) {
            if (!EnumSet.of(
                            ErrorKind.UNAUTHORIZED,
                            ErrorKind.READ_ONLY,
                            ErrorKind.WRITES_PAUSED)
                    .contains(error.kind())) {
                throw error;
            }
            // A user with the right to read only.
            reply = home.run(RedisCall.command("HMGET", key, "partitions", "born"));
        }
        List<?> found = (List<?>) reply;
        String partitions = found.get(0) == null ? "0" : text(found.get(0));
        if (partitions.equals("0")) {
            throw BusException.of(ErrorKind.TOPIC_MISSING, "topic", topic);
        }
        if (!partitions.matches("[0-9]{1,4}")
                || Integer.parseInt(partitions) > TopicPartitioning.MAX_PARTITIONS) {
            throw BusException.of(
                    ErrorKind.QUEUE_DAMAGED,
                    "queue",
                    topic + "/0",
                    "found",
                    "the number of partitions of the topic is " + PyText.repr(partitions),
                    "expected",
                    "1 to " + TopicPartitioning.MAX_PARTITIONS);
        }
        return Integer.parseInt(partitions);
    }

    /**
     * The servers of partition queues; those that do not exist belong to the servers in turn, and
     * not where their names hash to.
     */
    public Map<String, Integer> locate(List<String> queues) {
        Map<String, Integer> homes = new HashMap<>();
        queues.forEach(queue -> homes.put(
                queue,
                TopicPartitioning.topicPartition(queue).number() % links.links().size()));
        return links.locate(queues, homes);
    }
}
