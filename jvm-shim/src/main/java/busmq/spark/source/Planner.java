package busmq.spark.source;

import busmq.spark.core.OffsetJson;
import busmq.spark.core.Plan;
import busmq.spark.core.Position;
import busmq.spark.core.QueueState;
import busmq.spark.options.ReadOptions;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/** How far the next micro-batch goes: what is stored, within the caps, with a fingerprint of the last message of each queue. */
final class Planner {
    private final ReadOptions options;
    private final Attachment attachment;
    private Map<String, QueueState> known = Map.of();
    private Map<String, Long> counters = Map.of();
    private Map<String, Long> ceiling;
    private Set<String> passedOver = Set.of();

    Planner(ReadOptions options, Attachment attachment) {
        this.options = options;
        this.attachment = attachment;
    }

    /** Trigger.AvailableNow: what is stored at the first planning is what is available now. */
    void seal() {
        ceiling = new HashMap<>();
    }

    boolean sealed() {
        return ceiling != null;
    }

    /** The newest ids, from the last planning. */
    Map<String, Long> lastIds() {
        Map<String, Long> found = new HashMap<>();
        known.forEach((queue, state) -> found.put(queue, state.lastId()));
        return found;
    }

    /** Whether planning may find anything beyond {@code begin}, without asking Redis. */
    boolean behind(Map<String, Position> begin) {
        return !attachment.queues().equals(begin.keySet()) || begin.entrySet().stream().anyMatch(at -> reachable(at.getKey()) > at.getValue().last());
    }

    /** Whether anything was given out since the last planning: one small command per server. */
    boolean pushed() {
        return !attachment.store.counters(attachment.queues()).equals(counters);
    }

    private long reachable(String queue) {
        long lastId = known.containsKey(queue) ? known.get(queue).lastId() : 0;
        return ceiling == null ? lastId : Math.min(lastId, ceiling.getOrDefault(queue, 0L));
    }

    /** Where the next batch begins in each queue, as the queues are now. */
    Map<String, Position> entries(Map<String, Position> begin, boolean fresh) {
        counters = attachment.store.counters(attachment.queues()); // before the states: a push in between is seen by the next poll
        Map<String, Long> wanted = new HashMap<>();
        attachment.queues().forEach(queue -> wanted.put(queue, begin.containsKey(queue) ? begin.get(queue).last() : -1));
        known = attachment.store.states(wanted);
        Map<String, Position> found = new TreeMap<>(OffsetJson.BY_CODE_POINT);
        known.forEach((queue, state) -> {
            Position entry = attachment.entry(queue, begin.get(queue), state, fresh);
            if (entry != null) {
                found.put(queue, entry);
            }
        });
        return found;
    }

    /** The end of the next micro-batch. */
    Map<String, Position> plan(Map<String, Position> begin, boolean fresh, boolean unlimited) {
        Map<String, Position> entries = entries(begin, fresh);
        if (ceiling != null && ceiling.isEmpty()) {
            known.forEach((queue, state) -> ceiling.put(queue, state.lastId()));
        }
        Map<String, Long> goals = new TreeMap<>(OffsetJson.BY_CODE_POINT);
        entries.forEach((queue, entry) -> goals.put(queue, Math.max(entry.last(), newest(queue))));
        if (!unlimited) {
            cap(entries, goals);
        }
        goals.keySet().removeIf(queue -> goals.get(queue) <= entries.get(queue).last());
        Map<String, String> marks = marks(goals);
        Map<String, Position> ends = new HashMap<>(entries);
        goals.forEach((queue, goal) -> {
            Position entry = entries.get(queue);
            Long start = entry == begin.get(queue) ? null : entry.start(); // one that enters, or goes on after a loss, says where the batch begins
            ends.put(queue, new Position(entry.born(), goal, marks.get(queue), start, entry.lost()));
        });
        return ends;
    }

    private long newest(String queue) {
        long newest = known.get(queue).newest();
        return ceiling == null ? newest : Math.min(newest, ceiling.getOrDefault(queue, 0L));
    }

    private Map<String, String> marks(Map<String, Long> goals) {
        Map<String, String> found = new HashMap<>();
        Map<String, Long> inner = new HashMap<>();
        goals.forEach((queue, goal) -> {
            if (goal == known.get(queue).newest()) {
                found.put(queue, known.get(queue).newestMark());
            } else {
                inner.put(queue, goal);
            }
        });
        if (!inner.isEmpty()) {
            found.putAll(attachment.store.marks(inner));
        }
        return found;
    }

    private void cap(Map<String, Position> entries, Map<String, Long> goals) {
        Map<String, Long> available = new TreeMap<>(OffsetJson.BY_CODE_POINT);
        goals.forEach((queue, goal) -> available.put(queue, goal - entries.get(queue).last()));
        Long most = options.maxMessages();
        if (most != null && available.values().stream().mapToLong(Long::longValue).sum() > most) {
            available.putAll(Plan.share(available, most));
        }
        if (options.maxBytes() != null) {
            available.putAll(withinBytes(entries, available, options.maxBytes()));
        }
        available.forEach((queue, rows) -> goals.put(queue, entries.get(queue).last() + rows));
    }

    /**
     * Rows such that their values fit the budget: every queue gets the same part, what one leaves goes to the next; at least one row in all. A
     * queue whose next message was larger than its part is first in line for the next batch, and may use all of it.
     */
    private Map<String, Long> withinBytes(Map<String, Position> entries, Map<String, Long> available, long budget) {
        List<String> line = available.keySet().stream().filter(queue -> available.get(queue) > 0)
                .sorted(Comparator.comparing((String queue) -> !passedOver.contains(queue)).thenComparing(available::get)
                        .thenComparing(OffsetJson.BY_CODE_POINT)).toList();
        Map<String, Long> fitting = new HashMap<>();
        available.keySet().forEach(queue -> fitting.put(queue, 0L));
        long left = budget;
        for (int place = 0; place < line.size() && left > 0; place++) {
            String queue = line.get(place);
            long first = entries.get(queue).last() + 1;
            long part = passedOver.contains(queue) ? left : left / (line.size() - place);
            long[] reached = attachment.store.bytesUntil(queue, first, first + available.get(queue) - 1, part);
            if (reached[0] < first && place == 0 && part == budget) {
                reached = new long[] {first, budget}; // one message over the whole budget: it must pass alone, or the queue stands still for ever
            }
            fitting.put(queue, reached[0] - first + 1);
            left -= reached[1];
        }
        if (!line.isEmpty() && fitting.values().stream().allMatch(rows -> rows == 0)) {
            fitting.put(line.get(0), 1L);
        }
        passedOver = new HashSet<>(line);
        passedOver.removeIf(queue -> fitting.get(queue) > 0);
        return fitting;
    }
}
