package busmq.spark.source;

import busmq.spark.core.Position;
import busmq.spark.options.ReadOptions;
import busmq.spark.redis.PushListeners;
import busmq.spark.redis.PushSignal;
import busmq.spark.store.ConsecutiveMessages;
import busmq.spark.store.ReadStore;
import busmq.spark.store.RealTimeQueue;
import busmq.spark.store.TimesOfIds;
import java.io.InterruptedIOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;

/**
 * Follows some queues in real-time mode: sleeps until a push to one of them, reads what came in one
 * reply each, and asks now and then all the same. The Python API of Spark has no such reader, so
 * the Python package has none either.
 */
final class RealTimeReader implements SupportsRealTimeRead<InternalRow> {
    /**
     * Every how many polls a queue that stands still is compared with what was read of it: some ten
     * commands inside Redis.
     */
    private static final long POLLS_PER_CHECK = 30;

    private static final long NOTE_INTERVAL_NS = TimeUnit.SECONDS.toNanos(1);
    private static final RecordStatus HAS_ROW = RecordStatus.newStatusWithoutArrivalTime(true);
    private static final RecordStatus NO_ROW = RecordStatus.newStatusWithoutArrivalTime(false);

    private final ReadStore store;
    private final RowMaker rowMaker;
    private final PushSignal signal;
    private final long pollNs;
    private final boolean endsAtOnce;
    private final List<QueueCursor> queues = new ArrayList<>();
    private final ArrayDeque<QueueCursor> queuesToAsk = new ArrayDeque<>();
    private QueueCursor currentQueue;
    private final TaskContext task = TaskContext.get();
    private InternalRow row;
    private long nextPollNs;
    private long nextCheckNs;
    private int checks;
    private long firstAskedMs;
    private final Set<String> queuesToNote = new HashSet<>();
    private long nextNoteNs = System.nanoTime();
    /**
     * The end of the batch, by a monotonic clock. Spark computes the timeout of each call from the
     * wall clock: if that is set back by a day, the batch would go on for a day, and none of its
     * messages be acknowledged until then.
     */
    private long endNs;

    private boolean closed;

    RealTimeReader(ReadOptions options, RowMaker rowMaker, RealTimePartition partition) {
        this.rowMaker = rowMaker;
        store = new ReadStore(options.redis());
        endsAtOnce = partition.endsAtOnce();
        pollNs = TimeUnit.MILLISECONDS.toNanos(partition.pollMs());
        Map<String, Integer> places = new HashMap<>();
        for (RealTimePartition.QueueEntry follow : partition.queues()) {
            store.setServer(follow.queue(), follow.server());
            store.setOwnListeners(
                    follow.queue(),
                    follow.executors().size()
                            + (follow.executors().contains(executorId()) ? 0 : 1));
            places.put(follow.queue(), follow.server());
            if (task != null) {
                TaskSourceQueueRegistry.add(
                        task,
                        follow.queue(),
                        new TaskSourceQueueRegistry.FollowedQueue(
                                follow.entry().born(), follow.shared(), options.failOnDataLoss()));
            }
            RealTimeQueue queue = new RealTimeQueue(
                    store,
                    follow.queue(),
                    follow.entry(),
                    follow.startsAnew(),
                    options.failOnDataLoss(),
                    rowMaker.hasTimestamp());
            queues.add(new QueueCursor(queue, follow.skipped()));
        }
        queuesToAsk.addAll(queues);
        signal = PushListeners.subscribe(options.redis(), places);
    }

    /** A queue, and how much of what was taken from it has been handed out. */
    private static final class QueueCursor {
        final RealTimeQueue queue;
        private ConsecutiveMessages chunk;
        private int nextIndex;
        private byte[] lastValue;
        private long lastId;
        private TimesOfIds times;

        private final Set<Long> skipped;

        QueueCursor(RealTimeQueue queue, Set<Long> skipped) {
            this.queue = queue;
            this.skipped = skipped;
        }

        void load(ConsecutiveMessages found) {
            chunk = found;
            times = queue.times();
            nextIndex = found.from();
            passSkipped();
        }

        private void passSkipped() {
            while (!skipped.isEmpty() && !isDone()
                    && skipped.contains(chunk.first() + nextIndex - chunk.from())) {
                nextIndex++;
            }
        }

        boolean isDone() {
            return chunk == null || nextIndex == chunk.until();
        }

        InternalRow nextRow(RowMaker rows) {
            lastValue = chunk.value(nextIndex);
            lastId = chunk.first() + nextIndex - chunk.from();
            nextIndex++;
            passSkipped();
            return rows.makeRow(chunk.queue(), lastId, lastValue, times);
        }

        Position position() {
            long next = isDone() ? queue.nextId() : chunk.first() + nextIndex - chunk.from();
            return queue.position(next, lastId == next - 1 ? lastValue : null);
        }
    }

    @Override
    public RecordStatus nextWithTimeout(Long timeoutMs) throws InterruptedIOException {
        long now = System.nanoTime();
        long until = now + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
        // Without a task there is no batch whose end is to be kept.
        if (firstAskedMs == 0 || until - endNs < 0 || task == null) {
            endNs = until;
        }
        firstAskedMs = firstAskedMs == 0 ? System.currentTimeMillis() : firstAskedMs;
        if (endsAtOnce || now - endNs > 0) {
            return NO_ROW;
        }
        while (currentQueue == null || currentQueue.isDone()) { // all of a chunk may be skipped
            while (!takeMessages()) {
                if (!awaitMessages(endNs)) {
                    return NO_ROW;
                }
            }
        }
        if (taskHasEnded()) {
            return NO_ROW; // what came meanwhile belongs to the next run
        }
        row = currentQueue.nextRow(rowMaker);
        return HAS_ROW;
    }

    /**
     * The only form that Spark 4.2.0 knows. 4.1, which this is compiled against, lacks it (hence no
     * annotation), and 4.3 accepts both.
     */
    public RecordStatus nextWithTimeout(Long startTimeMs, Long timeoutMs)
            throws InterruptedIOException {
        return nextWithTimeout(timeoutMs);
    }

    @Override
    public boolean next() throws InterruptedIOException {
        return nextWithTimeout(0L).hasRecord();
    }

    @Override
    public InternalRow get() {
        return row;
    }

    @Override
    public PartitionOffset getOffset() {
        Map<String, Position> ends = new HashMap<>();
        queues.forEach(followed -> ends.put(followed.queue.queue(), followed.position()));
        return new RealTimeOffset(ends, executorId(), firstAskedMs, System.currentTimeMillis());
    }

    @Override
    public void close() {
        if (!closed) {
            closed = true;
            signal.close();
            store.close();
        }
    }

    /**
     * Whether the engine has ended the task. It counts nothing of it then; an error would fill the
     * log at every stop of a query.
     */
    private boolean taskHasEnded() {
        return task != null && task.isInterrupted();
    }

    private static String executorId() {
        return SparkEnv.get() == null ? "" : SparkEnv.get().executorId();
    }

    private boolean takeMessages() {
        while (!queuesToAsk.isEmpty()) {
            QueueCursor next = queuesToAsk.poll();
            ConsecutiveMessages found = next.queue.takeMessages();
            nextPollNs = System.nanoTime() + pollNs;
            if (found != null) {
                queuesToNote.add(next.queue.queue());
                noteTimes();
                if (next.queue.lastReplyWasFull()) {
                    queuesToAsk.add(next);
                }
                next.load(found);
                currentQueue = next;
                return true;
            }
        }
        return false;
    }

    /** Sleeps until there may be something to take; false when the time is over. */
    private boolean awaitMessages(long until) throws InterruptedIOException {
        while (queuesToAsk.isEmpty()) {
            noteTimes();
            long now = System.nanoTime();
            if (now >= until || taskHasEnded()) {
                return false;
            }
            if (awaitPush(Math.min(until, nextPollNs) - now)) {
                addPushedQueues();
            } else if (System.nanoTime() >= nextPollNs) {
                pollQueues();
            }
        }
        return true;
    }

    /**
     * Pushes of npm clients note no time: the reader notes it here, at most once a second. With the
     * column of times each window does so by itself.
     */
    private void noteTimes() {
        long now = System.nanoTime();
        if (!rowMaker.hasTimestamp() && !queuesToNote.isEmpty() && now - nextNoteNs >= 0) {
            nextNoteNs = now + NOTE_INTERVAL_NS;
            store.noteTimesIfAllowed(queuesToNote);
            queuesToNote.clear();
        }
    }

    private boolean awaitPush(long nanos) throws InterruptedIOException {
        try {
            return signal.await(Math.max(0, nanos));
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            if (taskHasEnded()) {
                return false;
            }
            throw new InterruptedIOException("the task was ended while it waited for messages");
        }
    }

    private void addPushedQueues() {
        if (queues.size() == 1) {
            queuesToAsk.addAll(queues); // its window says at once what came
        } else {
            addQueuesWithNewIds();
        }
    }

    private void pollQueues() {
        long now = System.nanoTime();
        if (now >= nextCheckNs && !queues.isEmpty()) {
            nextCheckNs = now + POLLS_PER_CHECK * pollNs;
            // One at a time, so that many idle queues cost no more than one.
            QueueCursor next = queues.get(checks++ % queues.size());
            if (next.queue.checkState()) {
                queuesToAsk.add(next);
            }
        }
        addQueuesWithNewIds();
        nextPollNs = System.nanoTime() + pollNs;
    }

    private void addQueuesWithNewIds() {
        Map<String, Long> lastIds = store.counters(
                queues.stream().map(followed -> followed.queue.queue()).toList());
        for (QueueCursor followed : queues) {
            if (lastIds.get(followed.queue.queue()) >= followed.queue.nextId()
                    && !queuesToAsk.contains(followed)) {
                queuesToAsk.add(followed);
            }
        }
    }
}
