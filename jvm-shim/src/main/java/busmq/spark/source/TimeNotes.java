package busmq.spark.source;

import busmq.spark.core.Planner;
import busmq.spark.store.ReadStore;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Notes when messages were seen, since pushes of peers note nothing: one call a second at most, and none while no id has moved. */
final class TimeNotes {
    private Map<String, Long> lastIds = Map.of();
    private final Map<String, Long> noted = new HashMap<>();
    private Long next;

    /** Note the last ids of the last planning, as far as they are news. */
    void update(Planner planner, ReadStore store) {
        update(planner, store, false);
    }

    /** The same; {@code atOnce}: however soon after the last time. */
    void update(Planner planner, ReadStore store, boolean atOnce) {
        long now = System.nanoTime();
        if (planner.lastIds() == lastIds || !atOnce && next != null && now - next < 0) {
            return;
        }
        lastIds = planner.lastIds();
        Map<String, Long> moved = new HashMap<>(lastIds);
        moved.entrySet().removeIf(at -> at.getValue() <= 0 || at.getValue().equals(noted.get(at.getKey())));
        if (moved.isEmpty()) {
            return;
        }
        next = now + TimeUnit.SECONDS.toNanos(1);
        noted.putAll(moved);
        store.noteWherePossible(moved.keySet());
    }
}
