package busmq.spark.sink;

import busmq.spark.core.RandomToken;
import busmq.spark.core.TopicPartitioning;
import busmq.spark.options.WriteOptions;
import java.util.List;
import java.util.stream.Stream;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** {@code df.write.format("busmq-realtime")} and {@code INSERT INTO}: one commit of its own. */
final class BusmqBatchWrite implements BatchWrite {
    private final WriteOptions options;
    private final SinkColumns columns;
    private final boolean truncate;
    private final String writeToken = RandomToken.next();

    BusmqBatchWrite(WriteOptions options, SinkColumns columns, boolean truncate) {
        this.options = options;
        this.columns = columns;
        this.truncate = truncate;
    }

    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
        // What tasks push at once would be there before the old messages are deleted, and deleted
        // with them.
        return new WriterFactory(
                options,
                columns,
                truncate || options.delivery().equals("exactly-once"),
                null,
                "",
                writeToken);
    }

    @Override
    public boolean useCommitCoordinator() {
        return false;
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
        List<StagedList> staged = SinkCommitMessage.stagedLists(messages);
        try (SinkCommitter committer = new SinkCommitter(options)) {
            committer.commitBatchWrite(
                    "write-" + writeToken,
                    staged,
                    truncate ? queuesToEmpty(staged) : List.of(),
                    SinkCommitMessage.runOf(messages));
        }
    }

    /**
     * Return the queues that mode overwrite empties: each queue that gets rows, or the one of the
     * option; of a topic each partition.
     */
    private List<String> queuesToEmpty(List<StagedList> staged) {
        List<String> queues = staged.stream().map(StagedList::queue).distinct().toList();
        if (columns.topic() == null) {
            return queues.isEmpty() && columns.queue() != null ? List.of(columns.queue()) : queues;
        }
        Stream<String> topics = queues.isEmpty()
                ? Stream.ofNullable(columns.topic().topic())
                : queues.stream()
                        .map(queue -> TopicPartitioning.topicPartition(queue).topic());
        try (SinkStore store = new SinkStore(options)) {
            return topics.distinct()
                    .flatMap(topic -> store.topicQueues(topic).stream())
                    .toList();
        }
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
        BusmqStreamingWrite.discard(options, "", 0, messages);
    }
}
