package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.PyText;
import java.io.Serializable;
import java.util.Map;
import java.util.stream.Stream;

/**
 * The columns that choose topic and partition of a row, by position; -1: there is none, or another
 * one goes before it.
 *
 * @param topic the option; null: rows name theirs
 * @param keyIsText whether keys are strings
 */
record TopicColumns(String topic, int topicAt, int partitionAt, int keyAt, boolean keyIsText)
        implements Serializable {
    /**
     * Of rows with these columns; null where rows go to queues. {@code queue} and {@code topic} are
     * the options. Throws BUSMQ_CONFIG for what says both, or chooses a partition of no topic.
     */
    static TopicColumns of(
            Map<String, Integer> found,
            String[] names,
            boolean keyIsText,
            String queue,
            String topic) {
        if (topic == null && (queue != null || !found.containsKey("topic"))) {
            Stream.of("key", "partition")
                    .filter(name ->
                            found.containsKey(name) && (name.equals("key") || queue == null))
                    .findFirst()
                    .ifPresent(name -> {
                        throw BusException.configError(
                                "column " + PyText.repr(names[found.get(name)])
                                        + " chooses a partition of a topic, and these rows go to"
                                        + " queues; leave it out, or name a topic");
                    });
            return null;
        }
        if (topic == null && found.containsKey("queue")) {
            throw BusException.configError(
                    "columns 'queue' and 'topic' both say where a row goes; leave one out, or set"
                            + " option 'queue' or 'topic'");
        }
        int partitionAt = found.getOrDefault("partition", -1);
        int keyAt = partitionAt < 0 ? found.getOrDefault("key", -1) : -1;
        return new TopicColumns(
                topic, topic == null ? found.get("topic") : -1, partitionAt, keyAt, keyIsText);
    }
}
