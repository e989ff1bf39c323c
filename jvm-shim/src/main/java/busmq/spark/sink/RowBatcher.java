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
final class RowBatcher implements AutoCloseable {
    /** So many rows, or bytes, wait at most; then {@link #add} does. */
    static final int MOST_ROWS = 20_000;

    /** The same where rows wait for full chunks: of 20,000 for 1,000 queues a call has twenty, and costs nearly as much as one with fifty. */
    static final int MOST_STAGED_ROWS = 100_000;

    static final long MOST_BYTES = 16L << 20;
    private static final int BUFFERS_AT_ONCE = 64;
    private static final long AGAIN_MS = 500;

    /** Where rows go. Called by the sending thread alone. */
    interface Target {
        /**
         * Store the chunk of each buffer. The result says how many rows of each; fewer than all means that the queue is full, or why the buffer says
         * it was {@link QueueBuffer#refused}.
         */
        int[] store(List<QueueBuffer> buffers);

        /** The {@code maxsize} of a queue that is full. */
        long maxsize(QueueBuffer buffer);
    }

    private final Target target;
    private final long fullTimeoutMs;
    private final boolean onlyFullChunks;
    private final Runnable atEnd;
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition work = lock.newCondition();
    private final Condition progress = lock.newCondition();
    private final Map<String, QueueBuffer> buffers = new HashMap<>();
    private final ArrayDeque<QueueBuffer> ready = new ArrayDeque<>();
    private final List<QueueBuffer> blocked = new ArrayList<>();
    private long rows;
    private long bytes;
    private boolean sending;
    /** Whether buffers are served before they fill a chunk: a flush is waiting, or too many rows are. */
    private boolean pressed;
    private boolean closed;
    private RuntimeException failure;

    /** {@code onlyFullChunks}: rows wait for a full chunk, a flush, or until too many wait. {@code atEnd} runs last in the sending thread. */
    RowBatcher(Target target, long fullTimeoutMs, boolean onlyFullChunks, Runnable atEnd) {
        this.target = target;
        this.fullTimeoutMs = fullTimeoutMs;
        this.onlyFullChunks = onlyFullChunks;
        this.atEnd = atEnd;
        Thread thread = new Thread(this::run, "busmq-sink");
        thread.setDaemon(true);
        thread.start();
    }

    /** Throws what has ended the sending, be it about an earlier row. */
    void add(String queue, byte[] value, RowOrigin origin) throws InterruptedIOException {
        enter();
        try {
            while ((rows >= (onlyFullChunks ? MOST_STAGED_ROWS : MOST_ROWS) || bytes >= MOST_BYTES) && failure == null) {
                sendAll();
                await(progress);
            }
            check();
            QueueBuffer buffer = buffers.computeIfAbsent(queue, QueueBuffer::new);
            buffer.add(value, origin);
            rows++;
            bytes += value.length;
            if (!onlyFullChunks || buffer.fills()) {
                list(buffer);
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
            for (List<QueueBuffer> round = awaitBuffersToSend(); round != null; round = awaitBuffersToSend()) {
                settle(round, store(round));
            }
        } catch (RuntimeException | Error error) {
            failUntilClosed(error instanceof RuntimeException known ? known : new IllegalStateException(error));
        } finally {
            atEnd.run();
        }
    }

    /**
     * Rows that are pushed are tried again as long as their task is open: it learns of an error only with its next row, and that, or the end
     * of the batch, may be an hour away.
     */
    private int[] store(List<QueueBuffer> round) {
        round.forEach(buffer -> buffer.refused = null);
        try {
            return target.store(round);
        } catch (BusException error) {
            if (onlyFullChunks) {
                throw error;
            }
            round.forEach(buffer -> buffer.refused = error);
            return new int[round.size()];
        }
    }

    /** The buffers of the next call, each with its chunk; null at the end. */
    private List<QueueBuffer> awaitBuffersToSend() {
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

    private List<QueueBuffer> load() {
        List<QueueBuffer> round = new ArrayList<>();
        long size = 0;
        while (!ready.isEmpty() && round.size() < BUFFERS_AT_ONCE && size < 4L * QueueBuffer.CHUNK_BYTES) {
            QueueBuffer buffer = ready.poll();
            buffer.load();
            for (byte[] value : buffer.chunk) {
                size += value.length;
            }
            round.add(buffer);
        }
        return round;
    }

    private void settle(List<QueueBuffer> round, int[] stored) {
        long nowMs = System.nanoTime() / 1_000_000;
        lock.lock();
        try {
            for (int i = 0; i < stored.length; i++) {
                QueueBuffer buffer = round.get(i);
                rows -= stored[i];
                bytes -= buffer.stored(stored[i]);
                buffer.full = stored[i] > 0 ? null : buffer.full; // every bit of room starts the deadline anew
                if (buffer.refused != null) {
                    buffer.retryAtMs = nowMs + AGAIN_MS;
                    blocked.add(buffer);
                } else if (!buffer.chunk.isEmpty()) {
                    block(buffer, nowMs);
                } else if (buffer.isEmpty() || (onlyFullChunks && !buffer.fills() && !pressed)) {
                    buffer.listed = false;
                } else {
                    ready.add(buffer);
                }
            }
            if (rows == 0) {
                pressed = false;
            }
            failure = blocked.stream().map(buffer -> buffer.refused).filter(Objects::nonNull).findFirst().orElse(null);
            progress.signalAll();
        } finally {
            lock.unlock();
        }
    }

    private void sendAll() {
        pressed = true;
        buffers.values().stream().filter(buffer -> !buffer.isEmpty()).forEach(this::list);
    }

    private void list(QueueBuffer buffer) {
        if (buffer.listed) {
            return;
        }
        buffer.listed = true;
        ready.add(buffer);
        if (!sending) {
            work.signal();
        }
    }

    private void block(QueueBuffer buffer, long nowMs) {
        if (buffer.full == null) {
            buffer.full = new FullQueuePolicy(fullTimeoutMs);
        }
        buffer.retryAtMs = nowMs + buffer.full.pauseMs(buffer.queue, () -> target.maxsize(buffer), buffer.chunk.size(), nowMs);
        blocked.add(buffer);
    }

    /** Let those try again whose time has come; the result is how long the next one waits, -1 when there is none. */
    private long unblock() {
        if (blocked.isEmpty()) {
            return -1;
        }
        long nowMs = System.nanoTime() / 1_000_000;
        blocked.removeIf(buffer -> buffer.retryAtMs <= nowMs && ready.add(buffer));
        return blocked.stream().mapToLong(buffer -> buffer.retryAtMs - nowMs).min().orElse(-1);
    }

    /** The thread ends when the task has seen the error and closes, so that what is done at the end comes after that. */
    private void failUntilClosed(RuntimeException error) {
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
