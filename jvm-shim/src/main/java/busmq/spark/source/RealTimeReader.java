package busmq.spark.source;

import busmq.spark.core.Position;
import busmq.spark.options.ReadOptions;
import busmq.spark.redis.PushNotifiers;
import busmq.spark.redis.PushSignal;
import busmq.spark.store.MessageRows;
import busmq.spark.store.TimesOfIds;
import busmq.spark.store.RealTimeQueue;
import busmq.spark.store.ReadStore;
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
 * Follows some queues in real-time mode: sleeps until a push to one of them, reads what came in one reply each, and asks now and then all the same.
 * The Python API of Spark has no such reader, so there is no Python twin.
 */
final class RealTimeReader implements SupportsRealTimeRead<InternalRow> {
    /** Every how many polls a queue that stands still is compared with what was read of it: some ten commands inside Redis. */
    private static final long CHECK_POLLS = 30;
    private static final long NOTE_NS = TimeUnit.SECONDS.toNanos(1);
    private static final RecordStatus ROW = RecordStatus.newStatusWithoutArrivalTime(true);
    private static final RecordStatus NONE = RecordStatus.newStatusWithoutArrivalTime(false);

    private final ReadStore store;
    private final RowMaker rows;
    private final PushSignal signal;
    private final long pollNs;
    private final boolean pin;
    private final List<Followed> queues = new ArrayList<>();
    private final ArrayDeque<Followed> looking = new ArrayDeque<>();
    private Followed current;
    private final TaskContext task = TaskContext.get();
    private InternalRow row;
    private long nextPoll;
    private long nextCheck;
    private int checked;
    private long askedMs;
    private final Set<String> unnoted = new HashSet<>();
    private long nextNote = System.nanoTime();
    /**
     * When the batch ends, by a clock that only goes forward. Spark computes the timeout of each call from the wall clock: if that is set back by a
     * day, the batch would go on for a day, and none of its messages be acknowledged until then.
     */
    private long end;

    private boolean closed;

    RealTimeReader(ReadOptions options, RowMaker rows, RealTimePartition partition) {
        this.rows = rows;
        store = new ReadStore(options.redis());
        pin = partition.pin();
        pollNs = TimeUnit.MILLISECONDS.toNanos(partition.pollMs());
        Map<String, Integer> places = new HashMap<>();
        for (RealTimePartition.Follow follow : partition.queues()) {
            store.setServer(follow.queue(), follow.server());
            store.listening(follow.queue(), follow.heardBy().size() + (follow.heardBy().contains(executor()) ? 0 : 1));
            places.put(follow.queue(), follow.server());
            if (task != null) {
                FollowedQueues.add(task, follow.queue(), new FollowedQueues.Followed(follow.entry().born(), follow.shared(), options.failOnDataLoss()));
            }
            queues.add(new Followed(new RealTimeQueue(store, follow.queue(), follow.entry(), follow.entered(), options.failOnDataLoss(), rows.timed())));
        }
        looking.addAll(queues);
        signal = PushNotifiers.subscribe(options.redis(), places);
    }

    /** A queue, and how much of what was taken from it has been handed out. */
    private static final class Followed {
        final RealTimeQueue queue;
        private MessageRows chunk;
        private int at;
        private byte[] handed;
        private long handedId;
        private TimesOfIds times;

        Followed(RealTimeQueue queue) {
            this.queue = queue;
        }

        void begin(MessageRows found) {
            chunk = found;
            times = queue.times();
            at = found.from();
        }

        boolean done() {
            return chunk == null || at == chunk.until();
        }

        InternalRow row(RowMaker rows) {
            handed = chunk.value(at);
            handedId = chunk.first() + at - chunk.from();
            at++;
            return rows.row(chunk.queue(), handedId, handed, times);
        }

        Position position() {
            long next = done() ? queue.need() : chunk.first() + at - chunk.from();
            return queue.position(next, handedId == next - 1 ? handed : null);
        }
    }

    @Override
    public RecordStatus nextWithTimeout(Long timeoutMs) throws InterruptedIOException {
        long now = System.nanoTime();
        long until = now + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
        if (askedMs == 0 || until - end < 0 || task == null) { // without a task there is no batch whose end is to be kept
            end = until;
        }
        askedMs = askedMs == 0 ? System.currentTimeMillis() : askedMs;
        if (pin || now - end > 0) {
            return NONE;
        }
        if (current == null || current.done()) {
            while (!refill()) {
                if (!awaited(end)) {
                    return NONE;
                }
            }
        }
        if (ended()) {
            return NONE; // what came meanwhile belongs to the next run
        }
        row = current.row(rows);
        return ROW;
    }

    /** The only form that Spark 4.2.0 knows. 4.1, which this is compiled against, lacks it (hence no annotation), and 4.3 accepts both. */
    public RecordStatus nextWithTimeout(Long startTimeMs, Long timeoutMs) throws InterruptedIOException {
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
        return new RealTimeOffset(ends, executor(), askedMs, System.currentTimeMillis());
    }

    @Override
    public void close() {
        if (!closed) {
            closed = true;
            signal.close();
            store.close();
        }
    }

    /** Whether the engine has ended the task. It counts nothing of it then; an error would fill the log at every stop of a query. */
    private boolean ended() {
        return task != null && task.isInterrupted();
    }

    private static String executor() {
        return SparkEnv.get() == null ? "" : SparkEnv.get().executorId();
    }

    private boolean refill() {
        while (!looking.isEmpty()) {
            Followed next = looking.poll();
            MessageRows found = next.queue.take();
            nextPoll = System.nanoTime() + pollNs;
            if (found != null) {
                unnoted.add(next.queue.queue());
                noteTimes();
                if (next.queue.full()) {
                    looking.add(next);
                }
                next.begin(found);
                current = next;
                return true;
            }
        }
        return false;
    }

    /** Sleeps until there may be something to take; false when the time is over. */
    private boolean awaited(long until) throws InterruptedIOException {
        while (looking.isEmpty()) {
            noteTimes();
            long now = System.nanoTime();
            if (now >= until || ended()) {
                return false;
            }
            if (awaitPush(Math.min(until, nextPoll) - now)) {
                onPush();
            } else if (System.nanoTime() >= nextPoll) {
                poll();
            }
        }
        return true;
    }

    /** Pushes of peers note no time: what came is noted here, once a second at most. With the column of times each window does so by itself. */
    private void noteTimes() {
        long now = System.nanoTime();
        if (!rows.timed() && !unnoted.isEmpty() && now - nextNote >= 0) {
            nextNote = now + NOTE_NS;
            store.noteWherePossible(unnoted);
            unnoted.clear();
        }
    }

    private boolean awaitPush(long nanos) throws InterruptedIOException {
        try {
            return signal.await(Math.max(0, nanos));
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            if (ended()) {
                return false;
            }
            throw new InterruptedIOException("the task was ended while it waited for messages");
        }
    }

    private void onPush() {
        if (queues.size() == 1) {
            looking.addAll(queues); // its window says at once what came
        } else {
            count();
        }
    }

    private void poll() {
        long now = System.nanoTime();
        if (now >= nextCheck && !queues.isEmpty()) {
            nextCheck = now + CHECK_POLLS * pollNs;
            Followed next = queues.get(checked++ % queues.size()); // one at a time, so that many idle queues cost no more than one
            if (next.queue.check()) {
                looking.add(next);
            }
        }
        count();
        nextPoll = System.nanoTime() + pollNs;
    }

    private void count() {
        Map<String, Long> lastIds = store.counters(queues.stream().map(followed -> followed.queue.queue()).toList());
        for (Followed followed : queues) {
            if (lastIds.get(followed.queue.queue()) >= followed.queue.need() && !looking.contains(followed)) {
                looking.add(followed);
            }
        }
    }
}
