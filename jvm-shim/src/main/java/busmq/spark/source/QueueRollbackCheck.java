package busmq.spark.source;

import busmq.spark.BusException;
import busmq.spark.core.Loss;
import busmq.spark.core.Position;
import busmq.spark.core.QueueState;
import busmq.spark.core.Range;
import busmq.spark.redis.RedisCall;
import busmq.spark.store.RangeReader;
import busmq.spark.store.ReadStore;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Whether what a task reads is still what was planned: a Redis that lost its newest writes gives
 * the same ids to other messages.
 */
final class QueueRollbackCheck implements RangeReader.QueueCheck {
    private static final Logger LOG = LoggerFactory.getLogger(QueueRollbackCheck.class);

    private final ReadStore store;
    private final Map<String, Position> ends;
    private final boolean strict;
    private final Set<String> changed = new HashSet<>();

    QueueRollbackCheck(ReadStore store, Map<String, Position> ends, boolean strict) {
        this.store = store;
        this.ends = ends;
        this.strict = strict;
    }

    /** {@link #check} for all queues of the task. */
    void checkAll() {
        check(ends.keySet());
    }

    /**
     * Compares queues, in one round trip: throws what happened to them, or with
     * failOnDataLoss=false remembers it for {@link #isUnchanged}.
     */
    void check(Collection<String> queues) {
        Map<String, Long> wanted = new HashMap<>();
        for (String queue : queues) {
            if (ends.containsKey(queue) && !changed.contains(queue)) {
                wanted.put(queue, ends.get(queue).last());
            }
        }
        if (!wanted.isEmpty()) {
            store.states(wanted).forEach(this::compare);
        }
    }

    /** Whether a queue was what was planned at the last check. */
    boolean isUnchanged(String queue) {
        return !changed.contains(queue);
    }

    /** Whether the question may travel with those of the reader of the one range of a task. */
    boolean canTravelWithReader(List<Range> ranges) {
        return ranges.size() == 1
                && ends.containsKey(ranges.get(0).queue())
                && store.keepsReplyOrder();
    }

    @Override
    public RedisCall call(String queue) {
        return store.stateCall(queue, ends.get(queue).last());
    }

    @Override
    public void checkReply(String queue, Object reply) {
        compare(queue, QueueState.of(queue, ReadStore.list(reply), 0));
    }

    private void compare(String queue, QueueState state) {
        Loss loss = Loss.between(ends.get(queue), state);
        if (loss == null || !Set.of("rolled-back", "reissued").contains(loss.kind())) {
            return; // the reader of the range reports any other loss
        }
        BusException error = store.lossError(queue, loss);
        if (strict) {
            throw error;
        }
        LOG.warn("{}; its rows of this batch are skipped", error.getMessage());
        changed.add(queue);
    }
}
