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
 * Rows gather while a call to Redis is under way; the gathered rows are the next call. A single row
 * is sent at once, many in chunks.
 *
 * <p>The rows of one queue keep their order: a queue has one chunk under way, and what was not
 * stored of it goes before everything later. A caller's thread adds rows, and a thread of the
 * batcher sends them.
 */
final class RowBatcher implements AutoCloseable {
    /** So many rows, or bytes, wait at most; then {@link #add} does. */
    static final int MOST_ROWS = 20_000;

    /**
     * The limit where rows wait for full chunks: with 20,000 rows for 1,000 queues a call has
     * twenty rows, and costs nearly as much as one with fifty.
     */
    static final int MOST_STAGED_ROWS = 100_000;

    static final long MOST_BYTES = 16L << 20;
    private static final int BUFFERS_AT_ONCE = 64;
    private static final long RETRY_MS = 500;

    /** The target of rows. Called by the sending thread alone. */
    interface Target {
        /**
         * Store the chunk of each buffer. The result says how many rows of each; fewer than all
         * means that the queue is full, or why the buffer says it was
         * {@link QueueWriteBuffer#refusal}.
         */
        int[] writeChunks(List<QueueWriteBuffer> buffers);

        /** The {@code maxsize} of a queue that is full. */
        long maxsize(QueueWriteBuffer buffer);
    }

    private final Target target;
    private final long fullTimeoutMs;
    private final boolean onlyFullChunks;
    private final Runnable runAtEnd;
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition work = lock.newCondition();
    private final Condition progress = lock.newCondition();
    private final Map<String, QueueWriteBuffer> buffers = new HashMap<>();
    private final ArrayDeque<QueueWriteBuffer> readyBuffers = new ArrayDeque<>();
    private final List<QueueWriteBuffer> blockedBuffers = new ArrayList<>();
    private long rows;
    private long bytes;
    private boolean sending;
    /**
     * Whether buffers are sent before they fill a chunk: a flush is waiting, or too many rows are.
     */
    private boolean sendsPartialChunks;

    private boolean closed;
    private RuntimeException failure;

    /**
     * {@code onlyFullChunks}: rows wait for a full chunk, a flush, or until too many wait.
     * {@code runAtEnd} runs last in the sending thread.
     */
    RowBatcher(Target target, long fullTimeoutMs, boolean onlyFullChunks, Runnable runAtEnd) {
        this.target = target;
        this.fullTimeoutMs = fullTimeoutMs;
        this.onlyFullChunks = onlyFullChunks;
        this.runAtEnd = runAtEnd;
        Thread thread = new Thread(this::run, "busmq-sink");
        thread.setDaemon(true);
        thread.start();
    }

    /** Throws what has ended the sending, be it about an earlier row. */
    void add(String queue, byte[] value, RowOrigin origin) throws InterruptedIOException {
        lockOrThrow();
        try {
            while ((rows >= (onlyFullChunks ? MOST_STAGED_ROWS : MOST_ROWS) || bytes >= MOST_BYTES)
                    && failure == null) {
                scheduleAll();
                await(progress);
            }
            throwIfFailed();
            QueueWriteBuffer buffer = buffers.computeIfAbsent(queue, QueueWriteBuffer::new);
            buffer.add(value, origin);
            rows++;
            bytes += value.length;
            if (!onlyFullChunks || buffer.fillsChunk()) {
                schedule(buffer);
            }
        } finally {
            lock.unlock();
        }
    }

    /** Wait until everything that was added is stored. */
    void flush() throws InterruptedIOException {
        lockOrThrow();
        try {
            scheduleAll();
            while (rows > 0 && failure == null) await(progress);
            throwIfFailed();
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
    boolean hasFailedWith(ErrorKind kind) {
        lock.lock();
        try {
            return failure instanceof BusException known && known.kind() == kind;
        } finally {
            lock.unlock();
        }
    }

    private void run() {
        try {
            for (List<QueueWriteBuffer> round = awaitBuffersToSend();
                    round != null;
                    round = awaitBuffersToSend()) {
                applyResults(round, writeOrKeepRefusal(round));
            }
        } catch (RuntimeException | Error error) {
            failUntilClosed(
                    error instanceof RuntimeException known
                            ? known
                            : new IllegalStateException(error));
        } finally {
            runAtEnd.run();
        }
    }

    /**
     * Rows that are pushed are tried again as long as their task is open: it learns of an error
     * only with its next row, and that, or the end of the batch, may be an hour away.
     */
    private int[] writeOrKeepRefusal(List<QueueWriteBuffer> round) {
        round.forEach(buffer -> buffer.refusal = null);
        try {
            return target.writeChunks(round);
        } catch (BusException error) {
            if (onlyFullChunks) {
                throw error;
            }
            round.forEach(buffer -> buffer.refusal = error);
            return new int[round.size()];
        }
    }

    /** The buffers of the next call, each with its chunk; null at the end. */
    private List<QueueWriteBuffer> awaitBuffersToSend() {
        lock.lock();
        try {
            sending = false;
            while (!closed) {
                long pauseMs = retryDueBuffers();
                if (!readyBuffers.isEmpty()) {
                    sending = true;
                    return loadChunks();
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

    private List<QueueWriteBuffer> loadChunks() {
        List<QueueWriteBuffer> round = new ArrayList<>();
        long size = 0;
        while (!readyBuffers.isEmpty()
                && round.size() < BUFFERS_AT_ONCE
                && size < 4L * QueueWriteBuffer.CHUNK_BYTES) {
            QueueWriteBuffer buffer = readyBuffers.poll();
            buffer.loadChunk();
            for (byte[] value : buffer.chunk) {
                size += value.length;
            }
            round.add(buffer);
        }
        return round;
    }

    private void applyResults(List<QueueWriteBuffer> round, int[] stored) {
        long nowMs = System.nanoTime() / 1_000_000;
        lock.lock();
        try {
            for (int i = 0; i < stored.length; i++) {
                QueueWriteBuffer buffer = round.get(i);
                rows -= stored[i];
                bytes -= buffer.removeStored(stored[i]);
                // With each row that is stored the deadline starts anew.
                buffer.fullWait = stored[i] > 0 ? null : buffer.fullWait;
                if (buffer.refusal != null) {
                    buffer.retryAtMs = nowMs + RETRY_MS;
                    blockedBuffers.add(buffer);
                } else if (!buffer.chunk.isEmpty()) {
                    blockWhileFull(buffer, nowMs);
                } else if (buffer.isEmpty()
                        || (onlyFullChunks && !buffer.fillsChunk() && !sendsPartialChunks)) {
                    buffer.isScheduled = false;
                } else {
                    readyBuffers.add(buffer);
                }
            }
            if (rows == 0) {
                sendsPartialChunks = false;
            }
            failure = blockedBuffers.stream()
                    .map(buffer -> buffer.refusal)
                    .filter(Objects::nonNull)
                    .findFirst()
                    .orElse(null);
            progress.signalAll();
        } finally {
            lock.unlock();
        }
    }

    private void scheduleAll() {
        sendsPartialChunks = true;
        buffers.values().stream().filter(buffer -> !buffer.isEmpty()).forEach(this::schedule);
    }

    private void schedule(QueueWriteBuffer buffer) {
        if (buffer.isScheduled) {
            return;
        }
        buffer.isScheduled = true;
        readyBuffers.add(buffer);
        if (!sending) {
            work.signal();
        }
    }

    private void blockWhileFull(QueueWriteBuffer buffer, long nowMs) {
        if (buffer.fullWait == null) {
            buffer.fullWait = new FullQueueWait(fullTimeoutMs);
        }
        buffer.retryAtMs = nowMs
                + buffer.fullWait.pauseMs(
                        buffer.queue, () -> target.maxsize(buffer), buffer.chunk.size(), nowMs);
        blockedBuffers.add(buffer);
    }

    /**
     * Let those try again whose time has come; the result is how long the next one waits, -1 when
     * there is none.
     */
    private long retryDueBuffers() {
        if (blockedBuffers.isEmpty()) {
            return -1;
        }
        long nowMs = System.nanoTime() / 1_000_000;
        blockedBuffers.removeIf(buffer -> buffer.retryAtMs <= nowMs && readyBuffers.add(buffer));
        return blockedBuffers.stream()
                .mapToLong(buffer -> buffer.retryAtMs - nowMs)
                .min()
                .orElse(-1);
    }

    /**
     * The thread ends when the task has seen the error and closes, so that what is done at the end
     * comes after that.
     */
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

    private void throwIfFailed() {
        if (failure != null) {
            throw failure;
        }
        if (closed) {
            throw BusException.of(
                    ErrorKind.STATE,
                    "event",
                    "write to",
                    "what",
                    "the sink",
                    "state",
                    "closed",
                    "remedy",
                    "Open a new writer");
        }
    }

    private void lockOrThrow() throws InterruptedIOException {
        try {
            lock.lockInterruptibly();
        } catch (InterruptedException error) {
            throw interruptedError();
        }
    }

    private static void await(Condition condition) throws InterruptedIOException {
        try {
            condition.await();
        } catch (InterruptedException error) {
            throw interruptedError();
        }
    }

    private static InterruptedIOException interruptedError() {
        Thread.currentThread().interrupt();
        return new InterruptedIOException("the task was stopped while its rows were on their way");
    }
}
