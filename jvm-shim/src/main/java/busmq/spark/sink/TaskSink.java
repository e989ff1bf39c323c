package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.Contract;
import busmq.spark.ErrorKind;
import busmq.spark.options.WriteOptions;
import java.io.InterruptedIOException;
import java.util.List;

/** The rows of one task on their way to Redis, staged or straight into their queues. Made and used by one thread, and closed whatever happens. */
public final class TaskSink implements AutoCloseable {
    /** Redis' own limit of one value. */
    private static final int MAX_VALUE_BYTES = Contract.whole("maxValueBytes");

    private final StageTarget staging;
    private final StagingRenewal renewal;
    private final RowBatcher rows;
    /** Set before the sending thread ends: whether what was staged is to be taken back. */
    private volatile boolean discard;

    private TaskSink(WriteOptions options, SinkRun run, String attempt, String onceOf) {
        SinkStore store = new SinkStore(options);
        renewal = run == null ? null : new StagingRenewal(options, run.sink());
        staging = run == null ? null : new StageTarget(store, run, attempt, renewal);
        RowBatcher.Target target = staging == null ? new PushTarget(store, onceOf) : staging;
        rows = new RowBatcher(target, SinkCommitter.fullTimeoutMs(options), staging != null, () -> end(store));
    }

    /** At least once, in order. */
    public static TaskSink pushing(WriteOptions options) {
        return new TaskSink(options, null, null, null);
    }

    /** Once, in order: of rows that have an origin those after the last one that the query has appended. */
    static TaskSink pushingOnce(WriteOptions options, String query) {
        return new TaskSink(options, null, null, query);
    }

    /** Into lists that the driver commits; {@code attempt} must be unique for ever. */
    static TaskSink staging(WriteOptions options, SinkRun run, String attempt) {
        return new TaskSink(options, run, attempt, null);
    }

    /** Whether rows wait in lists for the commit of the batch. */
    boolean stages() {
        return staging != null;
    }

    /** Takes a row over and returns, unless many wait. Throws what has ended the sending, be it about an earlier row. */
    public void add(String queue, byte[] value) throws InterruptedIOException {
        add(queue, value, null);
    }

    void add(String queue, byte[] value, RowOrigin origin) throws InterruptedIOException {
        if (value.length > MAX_VALUE_BYTES) {
            throw BusException.of(ErrorKind.MESSAGE_REFUSED, "reason", "a message of " + value.length + " bytes is over Redis' limit of "
                    + MAX_VALUE_BYTES + " (512 MB). Store the body elsewhere and push its address");
        }
        rows.add(queue, value, origin);
    }

    /** Waits until every row is stored. */
    public void finish() throws InterruptedIOException {
        rows.flush();
    }

    /** The same; then what was staged, in the order of the first row of each list. */
    TaskOutcome outcome() throws InterruptedIOException {
        finish();
        return staging == null ? TaskOutcome.NOTHING : staging.outcome();
    }

    /** Gives up: nothing more is sent, and what was staged is taken back once the last call is answered. */
    void abort() {
        discard = staging != null;
        close();
    }

    @Override
    public void close() {
        if (renewal != null) {
            renewal.close();
        }
        rows.close();
    }

    /** The last thing that the sending thread does. */
    private void end(SinkStore store) {
        try (store) {
            if (discard && !rows.failedFor(ErrorKind.LINK_LOST)) {
                // A query that is started again and again on the same bad row, or on a full Redis, must not fill Redis with what it staged.
                store.discard(staging.segments());
            }
        } catch (BusException error) {
            // Only tidying up: staged lists end by themselves, and the error that led here is the one to be seen.
        }
    }
}
