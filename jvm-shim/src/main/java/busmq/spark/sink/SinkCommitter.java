package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import busmq.spark.PyText;
import busmq.spark.options.WriteOptions;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The driver's half of exactly-once: same keys, same record and same scripts as the Python sink, so
 * that either goes on with the other's batch.
 */
final class SinkCommitter implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(SinkCommitter.class);
    /** Errors after which none of the lists that were passed is on record. */
    private static final Set<ErrorKind> NOT_RECORDED = Set.of(
            ErrorKind.BATCH_CHANGED,
            ErrorKind.SINK_ROLLED_BACK,
            ErrorKind.SINK_TARGETS,
            ErrorKind.STALE_BATCH,
            ErrorKind.STALE_RUN,
            ErrorKind.STAGING_LOST);

    private final WriteOptions options;
    private final SinkStore store;
    /** A batch that the record of the sink must still have. */
    private long least = -1;

    SinkCommitter(WriteOptions options) {
        this.options = options;
        this.store = new SinkStore(options);
    }

    /**
     * Append the batch of a stream and note it in the checkpoint. Throws BUSMQ_SINK_ROLLED_BACK
     * where Redis does not know the noted batch.
     */
    void commitStreamBatch(
            CommittedBatchNote note,
            long batch,
            List<StagedList> staged,
            String query,
            String span,
            SinkRun run) {
        CommittedBatchNote.BatchCheck check;
        try {
            check = note.check(store, options.failOnDataLoss(), run.epoch(), batch);
        } catch (BusException error) {
            if (error.kind() == ErrorKind.SINK_ROLLED_BACK) {
                discard(staged);
            }
            throw error;
        }
        least = check.least();
        note.write(batch, commit(note.sink(), batch, staged, query, span, run), check);
    }

    /**
     * Append the batch, and return the lists that it consists of. Safe to repeat: rows already
     * appended are not appended again.
     */
    private List<StagedList> commit(
            String sink,
            long batch,
            List<StagedList> staged,
            String query,
            String span,
            SinkRun run) {
        if (sink.isEmpty()) {
            throw BusException.configError(
                    "Spark gave the tasks no id of their query, so the sink has no name; set"
                            + " option sinkId, one for each query");
        }
        warnIfQueueChanged(sink, run.before());
        List<StagedList> held = record(sink, batch, staged, query, span, run.epoch());
        store.discard(withoutHeld(staged, held)); // before a full queue may end this
        store.commitMany(sink, batch, held).forEach(part -> append(sink, batch, part));
        return held;
    }

    private void warnIfQueueChanged(String sink, List<String> before) {
        if (!before.isEmpty() && options.queue() != null && !before.contains(options.queue())) {
            LOG.warn(
                    "Sink {} wrote its last batch to {} and writes to queue {} now: what it wrote"
                        + " before stays where it is, and of a batch that was recorded then, what"
                        + " is missing still goes there. With a new checkpoint everything goes to"
                        + " the new queue",
                    sink,
                    before.stream().limit(5).map(PyText::repr).collect(Collectors.joining(", ")),
                    PyText.repr(options.queue()));
        }
    }

    private List<StagedList> record(
            String sink,
            long batch,
            List<StagedList> staged,
            String query,
            String span,
            long epoch) {
        if (staged.isEmpty()) {
            // A batch without rows is not recorded: the record of the last one with rows stays.
            // Rows recorded under its number are appended.
            return store.recordedLists(sink, batch);
        }
        try {
            return recordForTargets(sink, batch, staged, query, span, epoch);
        } catch (BusException error) {
            if (options.onChangedBatch().equals("keep")
                    && "rows".equals(error.getMessageParameters().get("by"))) {
                LOG.warn("{}. What was recorded first is kept", error.getMessage());
                return store.recordedLists(sink, batch);
            }
            if (NOT_RECORDED.contains(error.kind())) {
                discard(staged);
            }
            throw error;
        }
    }

    /** Records the batch. Throws BUSMQ_SINK_TARGETS where the record is for other targets. */
    private List<StagedList> recordForTargets(
            String sink,
            long batch,
            List<StagedList> staged,
            String query,
            String span,
            long epoch) {
        List<StagedList> held;
        try {
            held = store.record(sink, batch, staged, query, span, epoch, least);
        } catch (BusException error) {
            if (error.kind() == ErrorKind.BATCH_CHANGED || error.kind() == ErrorKind.STALE_BATCH) {
                long found = error.kind() == ErrorKind.STALE_BATCH
                        ? Long.parseLong(error.getMessageParameters().get("found"))
                        : batch;
                checkTargets(sink, found, store.recordedLists(sink, found), staged, query);
            }
            throw error;
        }
        checkTargets(sink, batch, held, staged, query);
        return held;
    }

    /**
     * Of a query whose rows name their queues {@link SinkStore#record} compares them, where another
     * checkpoint has recorded the batch.
     */
    private void checkTargets(
            String sink, long batch, List<StagedList> held, List<StagedList> staged, String query) {
        if (!query.isEmpty() && options.queue() == null && options.topic() == null) {
            return;
        }
        Set<String> before = StagedBatchContent.targets(held, options.queue() == null);
        Set<String> now = StagedBatchContent.targets(staged, options.queue() == null);
        if (!before.isEmpty() && !now.isEmpty() && Collections.disjoint(before, now)) {
            throw StagedBatchContent.targetsChangedError(sink, batch, before, now);
        }
    }

    /** A second error must not hide the first one; lists expire by themselves. */
    private void discard(List<StagedList> staged) {
        try {
            store.discard(staged);
        } catch (BusException error) {
            LOG.info(
                    "{} staged lists stay until they expire: {}",
                    staged.size(),
                    error.getMessage());
        }
    }

    /** A run that delivers at least once begins: see {@link SinkStore#forget(String, String)}. */
    void forget(String sink) {
        store.forget(sink, options.queue());
    }

    /**
     * A commit of its own, for a batch write whose sink is {@code sink}; {@code truncated} are the
     * queues that are emptied first.
     */
    void commitBatchWrite(
            String sink, List<StagedList> staged, List<String> truncated, SinkRun run) {
        store.truncate(truncated);
        if (options.batch() != null) {
            commit(options.sink(), options.batch(), staged, "", "", run);
        } else if (!staged.isEmpty()) {
            commit(sink, 0, staged, "", "", run);
            store.forget(sink, staged);
        }
    }

    /**
     * Remove what was staged in vain. A recorded batch stays: the next run of the query goes on
     * with it.
     */
    void abort(String sink, long batch, List<StagedList> staged) {
        store.discard(
                withoutHeld(staged, sink.isEmpty() ? List.of() : store.recordedLists(sink, batch)));
    }

    @Override
    public void close() {
        store.close();
    }

    private void append(String sink, long batch, List<StagedList> staged) {
        FullQueueWait full = new FullQueueWait(fullTimeoutMs(options));
        for (SinkStore.CommitStoppedAtMaxsize rest = store.commit(sink, batch, staged);
                rest != null;
                rest = store.commit(sink, batch, staged)) {
            long maxsize = rest.maxsize();
            sleep(full.pauseMs(
                    staged.get(0).queue(),
                    () -> maxsize,
                    rest.left(),
                    System.nanoTime() / 1_000_000));
        }
    }

    static long fullTimeoutMs(WriteOptions options) {
        return options.onFull().equals("block") ? options.fullTimeoutMs() : 0;
    }

    private static List<StagedList> withoutHeld(List<StagedList> staged, List<StagedList> held) {
        Set<String> kept = new HashSet<>();
        held.forEach(s -> kept.add(s.key()));
        return staged.stream().filter(s -> !kept.contains(s.key())).toList();
    }

    private static void sleep(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw BusException.of(
                    ErrorKind.STATE,
                    "event",
                    "commit to",
                    "what",
                    "a full queue",
                    "state",
                    "being stopped",
                    "remedy",
                    "The next run of the query goes on with the batch");
        }
    }
}
