package busmq.spark.source;

import busmq.spark.core.TopicPartitioning;
import busmq.spark.options.ReadOptions;
import busmq.spark.store.ReadStore;
import java.util.List;
import java.util.regex.Pattern;

/**
 * Which queues a query reads: those that its options name, those that exist and match their
 * pattern, or the partitions of their topics.
 */
final class QueueSelection {
    private final ReadOptions options;
    private final Pattern pattern;

    QueueSelection(ReadOptions options) {
        this.options = options;
        pattern = options.subscribePattern() == null
                ? null
                : Pattern.compile(options.subscribePattern());
    }

    /** Whether the options name them one by one. */
    boolean areNamedOneByOne() {
        return !options.subscribe().isEmpty();
    }

    /** Whether the options name the queue or its topic, or their pattern does. */
    boolean includes(String queue) {
        if (!options.topic().isEmpty()) {
            TopicPartitioning.Partition found = TopicPartitioning.topicPartition(queue);
            return found != null && options.topic().contains(found.topic());
        }
        return pattern == null
                ? options.subscribe().contains(queue)
                : pattern.matcher(queue).matches();
    }

    /**
     * The queues that are not named one by one: those that match the pattern, or the partitions of
     * the topics. {@code pace} runs between two steps of a walk over keys; {@code create}: whether
     * a topic is made where the options say so. Throws BUSMQ_TOPIC_MISSING.
     */
    List<String> findQueues(ReadStore store, Runnable pace, boolean create) {
        return options.topic().isEmpty()
                ? store.discover(this::includes, pace)
                : store.topicQueues(options.topic(), create ? options.partitions() : null);
    }
}
