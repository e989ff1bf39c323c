package busmq.spark.sink;

import busmq.spark.options.WriteOptions;
import busmq.spark.store.LeaseHolder;
import java.util.List;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** {@code df.write.format("busmq-realtime")} and {@code INSERT INTO}: one commit of its own. */
final class BusmqBatchWrite implements BatchWrite {
    private final WriteOptions options;
    private final SinkColumns columns;
    private final boolean truncate;
    private final String plan = LeaseHolder.newToken();

    BusmqBatchWrite(WriteOptions options, SinkColumns columns, boolean truncate) {
        this.options = options;
        this.columns = columns;
        this.truncate = truncate;
    }

    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
        // What tasks push at once would be there before the old messages are deleted, and deleted with them.
        return new WriterFactory(options, columns, truncate || options.delivery().equals("exactly-once"), null, "", plan);
    }

    @Override
    public boolean useCommitCoordinator() {
        return false;
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
        List<StagedList> staged = TaskOutcome.all(messages);
        List<String> emptied = staged.stream().map(StagedList::queue).distinct().toList();
        if (emptied.isEmpty() && columns.queue() != null) {
            emptied = List.of(columns.queue());
        }
        try (SinkCommitter committer = new SinkCommitter(options)) {
            committer.commitOnce("write-" + plan, staged, truncate ? emptied : List.of(), TaskOutcome.epoch(messages));
        }
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
        BusmqStreamingWrite.discard(options, "", 0, messages);
    }
}
