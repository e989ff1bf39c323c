package busmq.spark.sink;

import busmq.spark.SharedPythonConstants;
import busmq.spark.PyText;
import busmq.spark.core.TopicPartitioning;
import busmq.spark.options.WriteOptions;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * The partitions for the rows of a task: column {@code partition} names one, else column
 * {@code key} chooses, else the task fills one partition after the other. The row is given to
 * {@link #queueOf} by what reads its columns.
 */
public final class TopicPartitioner {
    /**
     * Rows that go to one partition before the next has its turn, as many as a record batch in
     * Python.
     */
    private static final int ROWS_PER_TURN = SharedPythonConstants.intNumber("rowsPerRecordBatch");

    private final WriteOptions options;
    private final SinkColumns columns;
    private final Map<String, List<String>> queuesByTopic = new HashMap<>();
    private final long firstPartition;
    private long rows;
    private String lastTopic;
    private List<String> lastQueues;

    /** {@code firstPartition}: the partition that has the first turn, modulo their number. */
    public TopicPartitioner(WriteOptions options, SinkColumns columns, long firstPartition) {
        this.options = options;
        this.columns = columns;
        this.firstPartition = firstPartition;
    }

    /** The columns of a row. */
    public interface Columns {
        boolean isNull(int at);

        String text(int at);

        int number(int at);

        byte[] bytes(int at, boolean text);
    }

    /**
     * The partition queue of a row. Throws BUSMQ_MESSAGE_REFUSED for a NULL and for a partition
     * that the topic has not, BUSMQ_TOPIC_MISSING.
     */
    public String queueOf(Columns row) {
        TopicColumns of = columns.topic();
        rows++;
        String topic =
                of.topicAt() < 0 ? of.topic() : row.text(checkNotNull(row, of.topicAt(), "topic"));
        List<String> queues = partitionQueues(topic);
        if (of.partitionAt() >= 0) {
            int partition = row.number(checkNotNull(row, of.partitionAt(), "partition"));
            if (partition < 0 || partition >= queues.size()) {
                queuesByTopic.remove(topic); // it may have grown
                lastTopic = null;
                queues = partitionQueues(topic);
            }
            if (partition < 0 || partition >= queues.size()) {
                throw SinkColumns.messageRefused("column 'partition' is " + partition
                        + " in some rows; topic " + PyText.repr(topic)
                        + " has the partitions 0 to "
                        + (queues.size() - 1));
            }
            return queues.get(partition);
        }
        if (of.keyAt() >= 0) {
            return queues.get(TopicPartitioning.partitionOf(
                    row.bytes(checkNotNull(row, of.keyAt(), "key"), of.keyIsText()),
                    queues.size()));
        }
        return queues.get((int) ((firstPartition + (rows - 1) / ROWS_PER_TURN) % queues.size()));
    }

    private int checkNotNull(Columns row, int at, String column) {
        if (row.isNull(at)) {
            throw SinkColumns.nullError(column, rows);
        }
        return at;
    }

    private List<String> partitionQueues(String topic) {
        if (!topic.equals(lastTopic)) {
            lastQueues = queuesByTopic.computeIfAbsent(topic, this::findPartitionQueues);
            lastTopic = topic;
        }
        return lastQueues;
    }

    private List<String> findPartitionQueues(String topic) {
        if (topic.isEmpty()) {
            throw SinkColumns.messageRefused(
                    "column 'topic' is empty in some rows; expected the name of a topic");
        }
        // The task's own store belongs to its sending thread.
        try (SinkStore store = new SinkStore(options)) {
            return store.topicQueues(topic);
        }
    }
}
