package busmq.spark.source;

import busmq.spark.core.Position;
import busmq.spark.options.ReadOptions;
import busmq.spark.store.AckResult;
import busmq.spark.store.ReadStore;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Acknowledges what is in the commit log, each position once. In real-time mode beside the
 * planning, which rows wait for.
 */
final class QueryAcks implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(QueryAcks.class);

    private final ReadOptions options;
    private final StreamQueueAcquirer streamQueues;
    private final Map<String, Position> ackedPositions = new HashMap<>();
    private final Map<String, Refusal> refusals = new ConcurrentHashMap<>();
    private final Set<String> failedQueues = ConcurrentHashMap.newKeySet();
    private ExecutorService executor;
    private boolean closed;

    /** The position that was refused, which a later ack may have replaced meanwhile. */
    private record Refusal(Position position, AckResult result) {}

    QueryAcks(ReadOptions options, StreamQueueAcquirer streamQueues) {
        this.options = options;
        this.streamQueues = streamQueues;
    }

    /**
     * Acknowledge, unless that was done before. A refused position is a loss: it is thrown where
     * that is not allowed.
     */
    void ackNow(Map<String, Position> positions) {
        Map<String, Position> fresh = takeUnacked(positions);
        Map<String, Position> lowest = streamQueues.siblings.lowestPositions(fresh);
        if (lowest.isEmpty()) {
            return;
        }
        Map<String, AckResult> results;
        try {
            results = streamQueues.store.ack(lowest, options.subscription());
        } catch (RuntimeException error) {
            ackedPositions.keySet().removeAll(lowest.keySet());
            throw error;
        }
        results.forEach((queue, result) -> handleRefusal(queue, lowest.get(queue), result));
    }

    /**
     * Acknowledge in another thread; {@link #throwRefusal} throws a refusal. Async progress
     * tracking still commits when all is closed.
     */
    void ackInThread(Map<String, Position> positions) {
        if (closed) {
            return; // the next run begins with it
        }
        failedQueues.forEach(queue -> {
            failedQueues.remove(queue);
            ackedPositions.remove(queue);
        });
        Map<String, Position> fresh = streamQueues.siblings.lowestPositions(takeUnacked(positions));
        if (fresh.isEmpty()) {
            return;
        }
        if (executor == null) {
            executor = Executors.newSingleThreadExecutor(work -> {
                Thread thread = new Thread(work, "busmq-ack");
                thread.setDaemon(true);
                return thread;
            });
        }
        executor.execute(() -> {
            try (ReadStore store = new ReadStore(options.redis())) {
                store.ack(fresh, options.subscription())
                        .forEach((queue, result) ->
                                refusals.put(queue, new Refusal(fresh.get(queue), result)));
            } catch (RuntimeException error) {
                failedQueues.addAll(fresh.keySet());
                LOG.warn("not acknowledged now, but with the next batch: {}", error.getMessage());
            }
        });
    }

    /** Whether there is anything to acknowledge. */
    boolean hasUnacked(Map<String, Position> positions) {
        return options.ack().equals("commit")
                && positions.entrySet().stream()
                        .anyMatch(at -> at.getValue().last() > 0
                                && streamQueues.queues().contains(at.getKey())
                                && !at.getValue().equals(ackedPositions.get(at.getKey())));
    }

    /** Throws the loss that an ack in the thread met. */
    void throwRefusal() {
        refusals.keySet().forEach(queue -> {
            Refusal refusal = refusals.remove(queue);
            handleRefusal(queue, refusal.position(), refusal.result());
        });
    }

    private Map<String, Position> takeUnacked(Map<String, Position> positions) {
        Map<String, Position> fresh = new HashMap<>();
        if (options.ack().equals("commit")) {
            positions.forEach((queue, position) -> {
                if (position.last() > 0
                        && streamQueues.queues().contains(queue)
                        && !position.equals(ackedPositions.put(queue, position))) {
                    fresh.put(queue, position);
                }
            });
        }
        return fresh;
    }

    private void handleRefusal(String queue, Position position, AckResult result) {
        if (result.isRefused()) {
            ackedPositions.remove(queue);
            streamQueues.failOnRefusedAck(queue, position, result);
        }
    }

    @Override
    public void close() {
        closed = true;
        if (executor != null) {
            executor.shutdown(); // what is under way may end: it is in the commit log
        }
    }
}
