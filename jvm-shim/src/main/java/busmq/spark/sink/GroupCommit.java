package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import java.io.InterruptedIOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Rows gather while a call to Redis is under way; what has gathered is the next call. A single row is sent at once, a flood in chunks.
 *
 * <p>The rows of one queue keep their order: a queue has one chunk under way, and what was not stored of it goes before everything later.
 * One thread adds, one of its own sends.
 */
final class GroupCommit implements AutoCloseable {
    /** So many rows, or bytes, wait at most; then {@link #add} does. */
    static final int MOST_ROWS = 20_000;

    static final long MOST_BYTES = 16L << 20;
    private static final int LANES_AT_ONCE = 64;
    private static final long AGAIN_MS = 500;

    /** Where rows go. Called by the sending thread alone. */
    interface Target {
        /**
         * Store the chunk of each lane. The result says how many rows of each; fewer than all means that the queue is full, or why the lane says
         * it was {@link Lane#refused}.
         */
        int[] store(List<Lane> lanes);

        /** The {@code maxsize} of a queue that is full. */
        long maxsize(Lane lane);
    }

    private final Target target;
    private final long fullTimeoutMs;
    private final boolean onlyFullChunks;
    private final Runnable atEnd;
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition work = lock.newCondition();
    private final Condition progress = lock.newCondition();
    private final Map<String, Lane> lanes = new HashMap<>();
    private final ArrayDeque<Lane> ready = new ArrayDeque<>();
    private final List<Lane> blocked = new ArrayList<>();
    private long rows;
    private long bytes;
    private boolean sending;
    /** Whether lanes are served before they fill a chunk: a flush is waiting, or too many rows are. */
    private boolean pressed;
    private boolean closed;
    private RuntimeException failure;

    /** {@code onlyFullChunks}: rows wait for a full chunk, a flush, or until too many wait. {@code atEnd} runs last in the sending thread. */
    GroupCommit(Target target, long fullTimeoutMs, boolean onlyFullChunks, Runnable atEnd) {
        this.target = target;
        this.fullTimeoutMs = fullTimeoutMs;
        this.onlyFullChunks = onlyFullChunks;
        this.atEnd = atEnd;
        Thread thread = new Thread(this::run, "busmq-sink");
        thread.setDaemon(true);
        thread.start();
    }

    /** Throws what has ended the sending, be it about an earlier row. */
    void add(String queue, byte[] value) throws InterruptedIOException {
        enter();
        try {
            while ((rows >= MOST_ROWS || bytes >= MOST_BYTES) && failure == null) {
                sendAll();
                await(progress);
            }
            check();
            Lane lane = lanes.computeIfAbsent(queue, Lane::new);
            lane.add(value);
            rows++;
            bytes += value.length;
            if (!onlyFullChunks || lane.fills()) {
                list(lane);
            }
        } finally {
            lock.unlock();
        }
    }

    /** Wait until everything that was added is stored. */
    void flush() throws InterruptedIOException {
        enter();
        try {
            sendAll();
            while (rows > 0 && failure == null) await(progress);
            check();
        } finally {
            lock.unlock();
        }
    }

    /** Send nothing more; returns at once, while the last call may be under way. */
    @Override
    public void close() {
        lock.lock();
        closed = true;
        work.signal();
        lock.unlock();
    }

    /** Whether the sending ended with this error. */
    boolean failedFor(ErrorKind kind) {
        lock.lock();
        try {
            return failure instanceof BusException known && known.kind() == kind;
        } finally {
            lock.unlock();
        }
    }

    private void run() {
        try {
            for (List<Lane> round = take(); round != null; round = take()) {
                settle(round, store(round));
            }
        } catch (RuntimeException | Error error) {
            fail(error instanceof RuntimeException known ? known : new IllegalStateException(error));
        } finally {
            atEnd.run();
        }
    }

    /**
     * Rows that are pushed are tried again as long as their task is open: it learns of an error only with its next row, and that, or the end
     * of the batch, may be an hour away.
     */
    private int[] store(List<Lane> round) {
        round.forEach(lane -> lane.refused = null);
        try {
            return target.store(round);
        } catch (BusException error) {
            if (onlyFullChunks) {
                throw error;
            }
            round.forEach(lane -> lane.refused = error);
            return new int[round.size()];
        }
    }

    /** The lanes of the next call, each with its chunk; null at the end. */
    private List<Lane> take() {
        lock.lock();
        try {
            sending = false;
            while (!closed) {
                long pauseMs = unblock();
                if (!ready.isEmpty()) {
                    sending = true;
                    return load();
                }
                if (pauseMs < 0) {
                    work.await();
                } else {
                    work.await(pauseMs, TimeUnit.MILLISECONDS);
                }
            }
            return null;
        } catch (InterruptedException error) {
            return null; // only a JVM that ends interrupts this thread
        } finally {
            lock.unlock();
        }
    }

    private List<Lane> load() {
        List<Lane> round = new ArrayList<>();
        long size = 0;
        while (!ready.isEmpty() && round.size() < LANES_AT_ONCE && size < 4L * Lane.CHUNK_BYTES) {
            Lane lane = ready.poll();
            lane.load();
            for (byte[] value : lane.chunk) {
                size += value.length;
            }
            round.add(lane);
        }
        return round;
    }

    private void settle(List<Lane> round, int[] stored) {
        long nowMs = System.nanoTime() / 1_000_000;
        lock.lock();
        try {
            for (int i = 0; i < stored.length; i++) {
                Lane lane = round.get(i);
                rows -= stored[i];
                bytes -= lane.stored(stored[i]);
                lane.full = stored[i] > 0 ? null : lane.full; // every bit of room starts the deadline anew
                if (lane.refused != null) {
                    lane.retryAtMs = nowMs + AGAIN_MS;
                    blocked.add(lane);
                } else if (!lane.chunk.isEmpty()) {
                    block(lane, nowMs);
                } else if (lane.isEmpty() || (onlyFullChunks && !lane.fills() && !pressed)) {
                    lane.listed = false;
                } else {
                    ready.add(lane);
                }
            }
            if (rows == 0) {
                pressed = false;
            }
            failure = blocked.stream().map(lane -> lane.refused).filter(Objects::nonNull).findFirst().orElse(null);
            progress.signalAll();
        } finally {
            lock.unlock();
        }
    }

    private void sendAll() {
        pressed = true;
        lanes.values().stream().filter(lane -> !lane.isEmpty()).forEach(this::list);
    }

    private void list(Lane lane) {
        if (lane.listed) {
            return;
        }
        lane.listed = true;
        ready.add(lane);
        if (!sending) {
            work.signal();
        }
    }

    private void block(Lane lane, long nowMs) {
        if (lane.full == null) {
            lane.full = new FullPolicy(fullTimeoutMs);
        }
        lane.retryAtMs = nowMs + lane.full.pauseMs(lane.queue, () -> target.maxsize(lane), lane.chunk.size(), nowMs);
        blocked.add(lane);
    }

    /** Let those try again whose time has come; the result is how long the next one waits, -1 when there is none. */
    private long unblock() {
        if (blocked.isEmpty()) {
            return -1;
        }
        long nowMs = System.nanoTime() / 1_000_000;
        blocked.removeIf(lane -> lane.retryAtMs <= nowMs && ready.add(lane));
        return blocked.stream().mapToLong(lane -> lane.retryAtMs - nowMs).min().orElse(-1);
    }

    /** The thread ends when the task has seen the error and closes, so that what is done at the end comes after that. */
    private void fail(RuntimeException error) {
        lock.lock();
        try {
            failure = error;
            progress.signalAll();
            while (!closed) {
                work.awaitUninterruptibly();
            }
        } finally {
            lock.unlock();
        }
    }

    private void check() {
        if (failure != null) {
            throw failure;
        }
        if (closed) {
            throw BusException.of(ErrorKind.STATE, "event", "write to", "what", "the sink", "state", "closed", "remedy", "Open a new writer");
        }
    }

    private void enter() throws InterruptedIOException {
        try {
            lock.lockInterruptibly();
        } catch (InterruptedException error) {
            throw interrupted();
        }
    }

    private static void await(Condition condition) throws InterruptedIOException {
        try {
            condition.await();
        } catch (InterruptedException error) {
            throw interrupted();
        }
    }

    private static InterruptedIOException interrupted() {
        Thread.currentThread().interrupt();
        return new InterruptedIOException("the task was stopped while its rows were on their way");
    }
}
