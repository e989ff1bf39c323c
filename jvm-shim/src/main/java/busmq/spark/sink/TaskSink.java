package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.ErrorKind;
import busmq.spark.options.WriteOptions;
import java.io.InterruptedIOException;

/**
 * Sends the rows of one task to Redis, into staged lists or straight into their queues. Made and
 * used by one thread, and closed whatever happens.
 */
public final class TaskSink implements AutoCloseable {
    /** Redis' own limit of one value. */
    private static final int MAX_VALUE_BYTES = SharedPythonConstants.intNumber("maxValueBytes");

    private final StagedListWriter stageTarget;
    private final StagingRenewal renewal;
    private final RowBatcher batcher;
    /** Set before the sending thread ends: whether what was staged is to be taken back. */
    private volatile boolean discardsStaged;

    private TaskSink(WriteOptions options, SinkRunId run, String attempt, String query) {
        SinkStore store = new SinkStore(options);
        renewal = run == null ? null : new StagingRenewal(options, run.sink());
        stageTarget = run == null ? null : new StagedListWriter(store, run, attempt, renewal);
        RowBatcher.Target target =
                stageTarget == null ? new DirectQueueWriter(store, query) : stageTarget;
        batcher = new RowBatcher(
                target,
                SinkCommitter.fullTimeoutMs(options),
                stageTarget != null,
                () -> closeStore(store));
    }

    /** At least once, in order. */
    public static TaskSink toQueues(WriteOptions options) {
        return new TaskSink(options, null, null, null);
    }

    /**
     * Once, in order: of rows that have an origin those after the last one that the query has
     * appended.
     */
    static TaskSink toQueuesOnce(WriteOptions options, String query) {
        return new TaskSink(options, null, null, query);
    }

    /** Into lists that the driver commits; {@code attempt} must be unique for ever. */
    static TaskSink toStagedLists(WriteOptions options, SinkRunId run, String attempt) {
        return new TaskSink(options, run, attempt, null);
    }

    /** Whether rows wait in lists for the commit of the batch. */
    boolean isStaging() {
        return stageTarget != null;
    }

    /**
     * Takes a row over and returns, unless many wait. Throws what has ended the sending, be it
     * about an earlier row.
     */
    public void add(String queue, byte[] value) throws InterruptedIOException {
        add(queue, value, null);
    }

    void add(String queue, byte[] value, RowOrigin origin) throws InterruptedIOException {
        if (value.length > MAX_VALUE_BYTES) {
            throw BusException.of(
                    ErrorKind.MESSAGE_REFUSED,
                    "reason",
                    "a message of " + value.length + " bytes is over Redis' limit of "
                            + MAX_VALUE_BYTES
                            + " (512 MB). Store the body elsewhere and push its address");
        }
        batcher.add(queue, value, origin);
    }

    /** Waits until every row is stored. */
    public void finish() throws InterruptedIOException {
        batcher.flush();
    }

    /** Close the sink and return the staged lists, in the order of the first row of each. */
    SinkCommitMessage finishWithOutcome() throws InterruptedIOException {
        finish();
        return stageTarget == null ? SinkCommitMessage.EMPTY : stageTarget.outcome();
    }

    /**
     * Gives up: nothing more is sent, and what was staged is taken back once the last call is
     * answered.
     */
    void abort() {
        discardsStaged = stageTarget != null;
        close();
    }

    @Override
    public void close() {
        if (renewal != null) {
            renewal.close();
        }
        batcher.close();
    }

    /** The last thing that the sending thread does. */
    private void closeStore(SinkStore store) {
        try (store) {
            if (discardsStaged
                    && !batcher.hasFailedWith(ErrorKind.LINK_LOST)
                    && !batcher.hasFailedWith(ErrorKind.WRITES_PAUSED)) {
                // A query that is started again and again on the same bad row, or on a full Redis,
                // must not fill Redis with what it staged.
                store.discard(stageTarget.listsWithUnconfirmed());
            }
        } catch (BusException error) {
            // Staged lists expire by themselves, and the error that led here is the one to be seen.
        }
    }
}
