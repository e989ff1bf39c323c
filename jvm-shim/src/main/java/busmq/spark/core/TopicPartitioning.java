package busmq.spark.core;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.PyText;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import java.util.zip.CRC32;

/** The rules of topics, as {@code groups/topic.py} has them. */
public final class TopicPartitioning {
    /** Most partitions of a topic. */
    public static final int MAX_PARTITIONS = SharedPythonConstants.intNumber("maxPartitions");

    private static final Pattern PARTITION =
            Pattern.compile("(.+)/(0|[1-9][0-9]{0,3})", Pattern.DOTALL);
    private static final Pattern LOOKS_LIKE_KEY_SUFFIX =
            Pattern.compile(SharedPythonConstants.text("looksLikeKeySuffix"));
    private static final Pattern FORBIDDEN_IN_NAME =
            Pattern.compile(SharedPythonConstants.text("forbiddenInName"));

    private TopicPartitioning() {}

    /** The topic and the partition in the name of a partition queue. */
    public record Partition(String topic, int number) {}

    /** The topic and the partition of a queue; null where its name is none of a partition queue. */
    public static Partition topicPartition(String queue) {
        Matcher found = PARTITION.matcher(queue);
        boolean is = found.matches() && Integer.parseInt(found.group(2)) < MAX_PARTITIONS;
        return is ? new Partition(found.group(1), Integer.parseInt(found.group(2))) : null;
    }

    /**
     * The partition of a key: CRC-32 (that of zlib) of its bytes, modulo the number of partitions.
     */
    public static int partitionOf(byte[] key, int partitions) {
        CRC32 sum = new CRC32();
        sum.update(key);
        return (int) (sum.getValue() % partitions);
    }

    /** The names of all partition queues. */
    public static List<String> partitionQueues(String topic, int partitions) {
        return IntStream.range(0, partitions).mapToObj(i -> topic + "/" + i).toList();
    }

    /** The name of a topic. Throws BUSMQ_CONFIG. */
    public static String checkTopic(String name) {
        boolean topic = !name.isEmpty()
                && !name.contains(":members:")
                && !name.startsWith("channel:")
                && !name.startsWith("service:")
                && name.equals(name.strip())
                && !FORBIDDEN_IN_NAME.matcher(name).find();
        if (!topic || LOOKS_LIKE_KEY_SUFFIX.matcher(":" + name).find()) {
            throw BusException.configError("the name of the topic is " + PyText.repr(name)
                    + "; expected a text without spaces around it or control characters, "
                    + "that is the beginning of no key of another queue or topic");
        }
        return name;
    }
}
