package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.redis.RedisCall;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * Rows straight into their queues, each queue in order: at least once, or once in a {@code query},
 * for rows that have an origin. A queue that vanished meanwhile is made anew where it may be.
 */
final class DirectQueueWriter implements RowBatcher.Target {
    private final SinkStore store;
    private final String query;

    DirectQueueWriter(SinkStore store, String query) {
        this.store = store;
        this.query = query;
    }

    /**
     * A refusal for one queue is an error of its buffer alone: the rows of other queues are stored,
     * and need no repeat.
     */
    @Override
    public int[] writeChunks(List<QueueWriteBuffer> buffers) {
        openTargetStates(buffers);
        Map<Integer, List<Integer>> byServer = IntStream.range(0, buffers.size())
                .boxed()
                .filter(i -> buffers.get(i).refusal == null)
                .collect(Collectors.groupingBy(
                        i -> (Integer) buffers.get(i).targetState,
                        LinkedHashMap::new,
                        Collectors.toList()));
        int[] stored = new int[buffers.size()];
        byServer.forEach((server, part) -> pushChunks(server, buffers, part, stored));
        return stored;
    }

    @Override
    public long maxsize(QueueWriteBuffer buffer) {
        return store.maxsize(buffer.queue, (Integer) buffer.targetState);
    }

    private void openTargetStates(List<QueueWriteBuffer> buffers) {
        try {
            QueueWriteBuffer.openTargetStates(buffers, store, (queue, server) -> server);
        } catch (BusException error) {
            boolean away = error.kind().isLinkLost(); // then each of them would be waited for anew
            buffers.stream()
                    .filter(buffer -> buffer.targetState == null)
                    .forEach(buffer -> keepRefusal(buffer, () -> {
                        if (away) {
                            throw error;
                        }
                        QueueWriteBuffer.openTargetStates(
                                List.of(buffer), store, (queue, server) -> server);
                    }));
        }
    }

    private void pushChunks(
            int server, List<QueueWriteBuffer> buffers, List<Integer> part, int[] stored) {
        List<Object> replies = store.link(server)
                .tryAll(part.stream().map(i -> pushCall(buffers.get(i))).toList());
        for (int at = 0; at < replies.size(); at++) {
            int i = part.get(at);
            Object reply = replies.get(at);
            keepRefusal(buffers.get(i), () -> stored[i] = countStored(buffers.get(i), reply));
        }
    }

    private static void keepRefusal(QueueWriteBuffer buffer, Runnable step) {
        try {
            step.run();
        } catch (BusException error) {
            buffer.refusal = error;
        }
    }

    private RedisCall pushCall(QueueWriteBuffer buffer) {
        return query == null
                ? store.pushCall(buffer.queue, buffer.chunk)
                : store.pushOnceCall(query, buffer.queue, buffer.chunk, buffer.chunkOrigins);
    }

    private int countStored(QueueWriteBuffer buffer, Object reply) {
        if (reply instanceof BusException refused) {
            throw refused;
        }
        int server = (Integer) buffer.targetState;
        long count = (Long) ((List<?>) reply).get(1);
        while (count < 0) {
            store.attach(buffer.queue, server);
            count = (Long) ((List<?>) store.link(server).run(pushCall(buffer))).get(1);
        }
        return (int) count;
    }
}
