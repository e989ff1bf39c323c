package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * The rows of one queue that are to be sent: those that wait, in order, and the chunk that is being
 * sent.
 */
final class QueueWriteBuffer {
    /**
     * Most messages in one script call: Lua's unpack fails near 8 000 values, and 1 000 small ones
     * take Redis well under 1 ms.
     */
    static final int CHUNK_ROWS = SharedPythonConstants.intNumber("chunkMessages");

    /**
     * Most bytes in one script call, so that large messages do not block Redis long either; a
     * single larger message goes alone.
     */
    static final int CHUNK_BYTES = SharedPythonConstants.intNumber("chunkBytes");

    final String queue;

    /** Rows that are under way, or not stored in full; only the sending thread uses them. */
    List<byte[]> chunk = List.of();

    /** The origin of each row of the chunk; empty where rows have none. */
    List<RowOrigin> chunkOrigins = List.of();

    /** The target's own value for this queue: the index of its server, or the staged list. */
    Object targetState;

    /** Whether the buffer is among those to be sent, or is being sent. */
    boolean isScheduled;

    /** Why nothing of the chunk was stored in the last round; null unless that was an error. */
    BusException refusal;

    long retryAtMs;
    FullQueueWait fullWait;
    private final ArrayDeque<byte[]> waitingValues = new ArrayDeque<>();
    private final ArrayDeque<RowOrigin> waitingOrigins = new ArrayDeque<>();
    private long waitingBytes;

    QueueWriteBuffer(String queue) {
        this.queue = queue;
    }

    /** {@code origin}: null where rows have none. */
    void add(byte[] value, RowOrigin origin) {
        waitingValues.add(value);
        if (origin != null) {
            waitingOrigins.add(origin);
        }
        waitingBytes += value.length;
    }

    boolean isEmpty() {
        return waitingValues.isEmpty() && chunk.isEmpty();
    }

    /** Whether what waits fills a chunk. */
    boolean fillsChunk() {
        return waitingValues.size() >= CHUNK_ROWS || waitingBytes >= CHUNK_BYTES;
    }

    /**
     * Move what waits into the chunk, as much as may travel at once; a chunk that is not done stays
     * as it is.
     */
    void loadChunk() {
        if (!chunk.isEmpty()) {
            return;
        }
        chunk = new ArrayList<>(Math.min(waitingValues.size(), CHUNK_ROWS));
        chunkOrigins = waitingOrigins.isEmpty() ? List.of() : new ArrayList<>();
        long bytes = 0;
        while (!waitingValues.isEmpty() && chunk.size() < CHUNK_ROWS) {
            bytes += waitingValues.peek().length;
            if (bytes > CHUNK_BYTES && !chunk.isEmpty()) {
                return;
            }
            waitingBytes -= waitingValues.peek().length;
            chunk.add(waitingValues.poll());
            if (!waitingOrigins.isEmpty()) {
                chunkOrigins.add(waitingOrigins.poll());
            }
        }
    }

    /** The first rows of the chunk are stored. The result is their size in bytes. */
    long removeStored(int rows) {
        long bytes = 0;
        for (byte[] value : chunk.subList(0, rows)) {
            bytes += value.length;
        }
        chunk = rows == chunk.size() ? List.of() : chunk.subList(rows, chunk.size());
        chunkOrigins = chunkOrigins.isEmpty() || chunk.isEmpty()
                ? List.of()
                : chunkOrigins.subList(rows, chunkOrigins.size());
        return bytes;
    }

    /** Makes what a target keeps for a queue on a server. */
    interface TargetStateOpener {
        Object open(String queue, int server);
    }

    /**
     * Makes the target's state for every buffer that has none, in the order of the buffers; their
     * queues are created if need be.
     */
    static void openTargetStates(
            List<QueueWriteBuffer> buffers, SinkStore store, TargetStateOpener opener) {
        List<QueueWriteBuffer> fresh =
                buffers.stream().filter(buffer -> buffer.targetState == null).toList();
        if (fresh.isEmpty()) {
            return;
        }
        Map<String, Integer> servers =
                store.attach(fresh.stream().map(buffer -> buffer.queue).toList());
        for (QueueWriteBuffer buffer : fresh) {
            buffer.targetState = opener.open(buffer.queue, servers.get(buffer.queue));
        }
    }
}
