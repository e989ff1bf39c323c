package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.core.RandomToken;
import busmq.spark.options.WriteOptions;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.types.StructType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The streaming sink of one query: exactly once with ordinary triggers, and in real-time mode where
 * that is asked for; else at least once there, and with that delivery option.
 */
final class BusmqStreamingWrite implements StreamingWrite {
    private static final Logger LOG = LoggerFactory.getLogger(BusmqStreamingWrite.class);
    /** Queries that were warned: Spark 4.1 makes one of these objects for each batch. */
    private static final Set<String> WARNED_QUERIES = ConcurrentHashMap.newKeySet();

    private final WriteOptions options;
    private final SinkColumns columns;
    private final StructType schema;
    private final String query;
    private final String checkpoint;
    private final boolean deliveryIsGiven;
    private final boolean asyncProgress;
    private boolean staging;

    /**
     * {@code checkpoint}: null where the query does not say where it is; {@code deliveryIsGiven}:
     * whether the user has asked for this delivery; {@code asyncProgress}: whether batches go on
     * before they are logged.
     */
    BusmqStreamingWrite(
            WriteOptions options,
            StructType schema,
            String query,
            String checkpoint,
            boolean deliveryIsGiven,
            boolean asyncProgress) {
        this.options = options;
        this.schema = schema;
        columns = SinkColumns.of(schema, options.queue(), options.topic());
        this.query = query;
        this.checkpoint = checkpoint;
        this.deliveryIsGiven = deliveryIsGiven;
        this.asyncProgress = asyncProgress;
    }

    @Override
    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
        staging = options.delivery().equals("exactly-once");
        RowOriginColumns origins = null;
        if (staging && RealTimeMode.isRunning()) {
            staging = false;
            origins = deliveryIsGiven ? RowOriginColumns.of(schema, columns) : null;
            try (SinkCommitter committer = new SinkCommitter(options)) {
                committer.forget(sinkName());
            }
            if (!deliveryIsGiven && WARNED_QUERIES.add(query)) {
                LOG.warn(
                        "Query {} writes in real-time mode: at least once. After a restart, rows"
                            + " since the last checkpoint come again, but for"
                            + " delivery=exactly-once with the columns queue and id of the source",
                        query);
            }
        }
        if (staging && asyncProgress) {
            throw RealTimeMode.notExactlyOnceError(
                    "asyncProgressTrackingEnabled=true",
                    "Set it to false, or say delivery=at-least-once");
        }
        return new WriterFactory(options, columns, staging, origins, query, RandomToken.next());
    }

    /**
     * A task stages under a name of its own, and the record decides which lists count: a task needs
     * no permission to commit.
     */
    @Override
    public boolean useCommitCoordinator() {
        return false;
    }

    @Override
    public void commit(long batch, WriterCommitMessage[] messages) {
        if (staging) {
            try (SinkCommitter committer = new SinkCommitter(options)) {
                CheckpointOffsetLog.syncBatchToDisk(checkpoint, batch);
                committer.commitStreamBatch(
                        new CommittedBatchNote(checkpoint, sinkName()),
                        batch,
                        SinkCommitMessage.stagedLists(messages),
                        query,
                        CheckpointOffsetLog.readBatchSpan(checkpoint, batch),
                        SinkCommitMessage.runOf(messages));
            }
        }
    }

    @Override
    public void abort(long batch, WriterCommitMessage[] messages) {
        discard(options, sinkName(), batch, messages);
    }

    /**
     * An error here is only logged: staged lists expire by themselves, and the error that led here
     * must not be hidden by a second one.
     */
    static void discard(
            WriteOptions options, String sink, long batch, WriterCommitMessage[] messages) {
        List<StagedList> staged = SinkCommitMessage.stagedLists(messages);
        // A record of these messages may still arrive.
        boolean tried = Arrays.stream(messages).noneMatch(Objects::isNull);
        if (staged.isEmpty() || tried) {
            return;
        }
        try (SinkCommitter committer = new SinkCommitter(options)) {
            committer.abort(sink, batch, staged);
        } catch (BusException error) {
            LOG.info(
                    "{} staged lists stay until they expire: {}",
                    staged.size(),
                    error.getMessage());
        }
    }

    private String sinkName() {
        return options.sink().isEmpty() ? query : options.sink();
    }
}
