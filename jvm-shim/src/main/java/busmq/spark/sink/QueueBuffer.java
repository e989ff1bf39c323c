package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.Contract;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** The rows of one queue on their way: those that wait, in order, and the chunk that is under way. */
final class QueueBuffer {
    /** Most messages in one script call: Lua's unpack dies near 8 000 values, and 1 000 small ones take Redis well under 1 ms. */
    static final int CHUNK_ROWS = Contract.whole("chunkMessages");

    /** Most bytes in one script call, so that large messages do not hold Redis long either; a single larger message goes alone. */
    static final int CHUNK_BYTES = Contract.whole("chunkBytes");

    final String queue;

    /** Under way, or not stored in full; only the sending thread looks at it. */
    List<byte[]> chunk = List.of();

    /** The origin of each row of the chunk; empty where rows have none. */
    List<RowOrigin> origins = List.of();

    /** What the target keeps for this queue: where it is, what was staged. */
    Object place;

    /** Whether the buffer is in the line of those to be served, or under way. */
    boolean listed;

    /** Why nothing of the chunk was stored in the last round; null unless that was an error. */
    BusException refused;

    long retryAtMs;
    FullQueuePolicy full;
    private final ArrayDeque<byte[]> waiting = new ArrayDeque<>();
    private final ArrayDeque<RowOrigin> waitingOrigins = new ArrayDeque<>();
    private long waitingBytes;

    QueueBuffer(String queue) {
        this.queue = queue;
    }

    /** {@code origin}: null where rows have none. */
    void add(byte[] value, RowOrigin origin) {
        waiting.add(value);
        if (origin != null) {
            waitingOrigins.add(origin);
        }
        waitingBytes += value.length;
    }

    boolean isEmpty() {
        return waiting.isEmpty() && chunk.isEmpty();
    }

    /** Whether what waits fills a chunk. */
    boolean fills() {
        return waiting.size() >= CHUNK_ROWS || waitingBytes >= CHUNK_BYTES;
    }

    /** Move what waits into the chunk, as much as may travel at once; a chunk that is not done stays as it is. */
    void load() {
        if (!chunk.isEmpty()) {
            return;
        }
        chunk = new ArrayList<>(Math.min(waiting.size(), CHUNK_ROWS));
        origins = waitingOrigins.isEmpty() ? List.of() : new ArrayList<>();
        long bytes = 0;
        while (!waiting.isEmpty() && chunk.size() < CHUNK_ROWS) {
            bytes += waiting.peek().length;
            if (bytes > CHUNK_BYTES && !chunk.isEmpty()) {
                return;
            }
            waitingBytes -= waiting.peek().length;
            chunk.add(waiting.poll());
            if (!waitingOrigins.isEmpty()) {
                origins.add(waitingOrigins.poll());
            }
        }
    }

    /** The first rows of the chunk are stored. The result is their size in bytes. */
    long stored(int rows) {
        long bytes = 0;
        for (byte[] value : chunk.subList(0, rows)) {
            bytes += value.length;
        }
        chunk = rows == chunk.size() ? List.of() : chunk.subList(rows, chunk.size());
        origins = origins.isEmpty() || chunk.isEmpty() ? List.of() : origins.subList(rows, origins.size());
        return bytes;
    }

    /** Makes what a target keeps for a queue on a server. */
    interface PlaceOpener {
        Object open(String queue, int server);
    }

    /** Give every buffer that is new its place, in the order of the buffers; their queues are created if need be. */
    static void openPlaces(List<QueueBuffer> buffers, SinkStore store, PlaceOpener opener) {
        List<QueueBuffer> fresh = buffers.stream().filter(buffer -> buffer.place == null).toList();
        if (fresh.isEmpty()) {
            return;
        }
        Map<String, Integer> servers = store.attach(fresh.stream().map(buffer -> buffer.queue).toList());
        for (QueueBuffer buffer : fresh) {
            buffer.place = opener.open(buffer.queue, servers.get(buffer.queue));
        }
    }
}
