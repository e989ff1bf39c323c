package busmq.spark.source;

import busmq.spark.core.BatchPlanner;
import busmq.spark.store.ReadStore;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * Notes when messages were seen, since pushes of peers note nothing: one call a second at most, and
 * none while no id has moved.
 */
final class IdTimeRecorder {
    private Map<String, Long> lastIds = Map.of();
    private final Map<String, Long> notedIds = new HashMap<>();
    private Long nextNs;

    /** Note the last ids of the last planning, as far as they are news. */
    void noteNewTimes(BatchPlanner planner, ReadStore store) {
        noteNewTimes(planner, store, false);
    }

    /** Note times; {@code atOnce} ignores the pause since the last time. */
    void noteNewTimes(BatchPlanner planner, ReadStore store, boolean atOnce) {
        long now = System.nanoTime();
        if (planner.lastIds() == lastIds || !atOnce && nextNs != null && now - nextNs < 0) {
            return;
        }
        lastIds = planner.lastIds();
        Map<String, Long> moved = new HashMap<>(lastIds);
        moved.entrySet()
                .removeIf(at ->
                        at.getValue() <= 0 || at.getValue().equals(notedIds.get(at.getKey())));
        if (moved.isEmpty()) {
            return;
        }
        nextNs = now + TimeUnit.SECONDS.toNanos(1);
        notedIds.putAll(moved);
        store.noteTimesIfAllowed(moved.keySet());
    }
}
