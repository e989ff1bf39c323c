package busmq.spark.core;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.PyText;
import busmq.spark.options.ReadOptions;
import busmq.spark.options.OffsetBound;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Function;

/**
 * The planner of batches: it finds the end of the next batch from the positions before it, the
 * options, and the states of the queues, as busmq_spark/reading/batch_planner.py does. It has no
 * connection and no clock: tests/golden/plans-v1.json tests both.
 */
public final class BatchPlanner {
    private static final long MAX_ID = SharedPythonConstants.number("maxId");

    private final ReadOptions options;
    private final PlannerIO io;
    private Map<String, Long> lastIds = Map.of();
    // Read before the last planning; null if that planning did not ask for them.
    private Map<String, Long> counters;
    private Map<String, Long> polledCounters; // since the last planning
    private Map<String, Long> ceiling;
    private Set<String> passedOver = Set.of();
    private Long lastBatchMs; // when a batch with messages was planned last

    /**
     * The queues that a stream holds.
     *
     * @param entering where queues begin that startingOffsets counts for: decided once, so that
     *     what is pushed meanwhile is not passed over
     * @param isFirstBatch whether startingOffsets counts for queues that are new
     */
    public record AcquiredQueues(
            Set<String> queues, Map<String, Position> entering, boolean isFirstBatch) {}

    public BatchPlanner(ReadOptions options, PlannerIO io) {
        this.options = options;
        this.io = io;
    }

    /** Trigger.AvailableNow: the query reads the messages that are stored at the first planning. */
    public void prepareForAvailableNow() {
        ceiling = new HashMap<>();
    }

    public boolean availableNow() {
        return ceiling != null;
    }

    /** The id given last by each queue, at the last planning. */
    public Map<String, Long> lastIds() {
        return lastIds;
    }

    /**
     * Whether planning finds something beyond {@code begin} by what is known already.
     * {@code nowMs}, here and for {@code plan}: by a clock that only goes forward.
     */
    public boolean hasMore(Map<String, Position> begin, AcquiredQueues held, long nowMs) {
        if (!held.queues().equals(begin.keySet())) {
            return true;
        }
        long count = begin.entrySet().stream()
                .mapToLong(at ->
                        Math.max(0, lastReachableId(at.getKey()) - at.getValue().last()))
                .sum();
        return count > 0 && !areTooFew(count, nowMs);
    }

    /**
     * Whether so many new messages are too few for a batch: never for the first one of this
     * planner, nor for what is available now.
     */
    private boolean areTooFew(long count, long nowMs) {
        if (options.minMessages() == null || availableNow() || lastBatchMs == null) {
            return false;
        }
        return count < options.minMessages()
                && nowMs - lastBatchMs < 1000 * options.triggerDelayS();
    }

    /**
     * Whether ids were given out since the last planning, as far as is known: one small command per
     * server. A planning right after a true answer makes that known again.
     */
    public boolean hasNewIds(AcquiredQueues held) {
        polledCounters = io.askQueueCounters(held.queues());
        return !polledCounters.equals(counters);
    }

    private long lastReachableId(String queue) {
        return withinCeiling(queue, lastIds.getOrDefault(queue, 0L));
    }

    private long withinCeiling(String queue, long id) {
        return ceiling == null ? id : Math.min(id, ceiling.getOrDefault(queue, 0L));
    }

    /**
     * Return the states of the queues.
     *
     * @param entries where the next batch begins
     * @param newest the newest message
     * @param markIds the id of the message whose fingerprint is in {@code marks}
     */
    private record BatchPlanInput(
            Map<String, Position> entries,
            Map<String, Long> newest,
            Map<String, Long> markIds,
            Map<String, String> marks) {}

    /**
     * Return the start of the next batch in each queue: its position, or its entry into the query.
     * Sorted by name.
     */
    public Map<String, Position> entries(Map<String, Position> begin, AcquiredQueues held) {
        Map<String, Position> found = new TreeMap<>(OffsetJson.BY_CODE_POINT);
        found.putAll(askQueues(begin, held, true).entries());
        return found;
    }

    private BatchPlanInput askQueues(
            Map<String, Position> begin, AcquiredQueues held, boolean unlimited) {
        Map<String, Long> predicted = predictEnds(begin, held, unlimited);
        Map<String, PlannerIO.IntactQueue> intact =
                predicted.isEmpty() ? Map.of() : io.askIntactQueues(begin, predicted);
        Map<String, Long> rest = new HashMap<>();
        held.queues().stream()
                .filter(queue -> !intact.containsKey(queue))
                .forEach(queue -> rest.put(
                        queue, begin.containsKey(queue) ? begin.get(queue).last() : -1));
        Map<String, QueueState> states = rest.isEmpty() ? Map.of() : io.askQueueStates(rest);
        Map<String, Position> entries = new HashMap<>();
        Map<String, Long> newest = new HashMap<>();
        Map<String, Long> markIds = new HashMap<>();
        Map<String, String> marks = new HashMap<>();
        Map<String, Long> lastIdsNow = new HashMap<>();
        intact.forEach((queue, found) -> {
            entries.put(queue, begin.get(queue));
            lastIdsNow.put(queue, found.lastId());
            newest.put(queue, found.lastId());
            markIds.put(queue, Math.min(found.lastId(), predicted.get(queue)));
            marks.put(queue, found.mark());
        });
        states.forEach((queue, state) -> {
            lastIdsNow.put(queue, state.lastId());
            newest.put(queue, state.newest());
            markIds.put(queue, state.newest());
            marks.put(queue, state.newestMark());
        });
        lastIds = lastIdsNow;
        // Read before the last ids: the next poll sees a push in between.
        counters = polledCounters;
        polledCounters = null;
        if (ceiling != null && ceiling.isEmpty()) {
            ceiling.putAll(lastIds);
        }
        states.forEach((queue, state) -> {
            Position entry = entryPosition(queue, begin.get(queue), state, held);
            if (entry != null) {
                entries.put(queue, entry);
            }
        });
        return new BatchPlanInput(entries, newest, markIds, marks);
    }

    /**
     * Predict the end of the batch in each queue with a position, from the last planning: at least
     * the next message.
     */
    private Map<String, Long> predictEnds(
            Map<String, Position> begin, AcquiredQueues held, boolean unlimited) {
        Map<String, Long> upto = new HashMap<>();
        held.queues().stream()
                .filter(begin::containsKey)
                .forEach(queue -> upto.put(queue, withinCeiling(queue, MAX_ID)));
        if (!unlimited) {
            Map<String, Long> available = new HashMap<>();
            upto.forEach((queue, id) -> available.put(
                    queue,
                    Math.max(
                            0,
                            Math.min(id, lastIds.getOrDefault(queue, 0L))
                                    - begin.get(queue).last())));
            boolean shared = shareOutMaxMessages(available);
            Long most = options.maxMessages();
            upto.replaceAll((queue, id) -> options.maxBytes() != null
                    ? Long.valueOf(0)
                    : shared
                            ? Long.valueOf(begin.get(queue).last() + available.get(queue))
                            : most != null
                                    ? Long.valueOf(Math.min(id, begin.get(queue).last() + most))
                                    : id);
        }
        upto.replaceAll((queue, id) -> Math.max(id, begin.get(queue).last() + 1));
        return upto;
    }

    /**
     * The positions at the end of the batch that begins at {@code begin}. {@code unlimited} ignores
     * the caps and the minimum of the options.
     */
    public Map<String, Position> plan(
            Map<String, Position> begin, AcquiredQueues held, boolean unlimited, long nowMs) {
        BatchPlanInput found = askQueues(begin, held, unlimited);
        Map<String, Position> entries = found.entries();
        Map<String, Long> goals = new HashMap<>();
        entries.forEach((queue, entry) -> goals.put(
                queue,
                Math.max(entry.last(), withinCeiling(queue, found.newest().get(queue)))));
        if (!unlimited) {
            // must be in the offset log
            boolean entered = entries.entrySet().stream()
                    .anyMatch(at -> startsAnew(at.getValue(), begin.get(at.getKey())));
            long count = entries.entrySet().stream()
                    .mapToLong(at -> goals.get(at.getKey()) - at.getValue().last())
                    .sum();
            if (!entered && areTooFew(count, nowMs)) {
                goals.clear();
            } else {
                applyCaps(entries, goals);
            }
        }
        goals.keySet().removeIf(queue -> goals.get(queue) <= entries.get(queue).last());
        lastBatchMs = goals.isEmpty() ? lastBatchMs : Long.valueOf(nowMs);
        Map<String, String> marks = goalMarks(goals, found);
        Map<String, Position> ends = new HashMap<>(entries);
        goals.forEach((queue, goal) -> {
            Position entry = entries.get(queue);
            Long start = startsAnew(entry, begin.get(queue)) ? entry.start() : null;
            ends.put(
                    queue, new Position(entry.born(), goal, marks.get(queue), start, entry.lost()));
        });
        return ends;
    }

    /**
     * Whether a queue is entered, since it had no position before or lost messages: then its end
     * says where the batch begins.
     */
    private static boolean startsAnew(Position entry, Position before) {
        return !entry.equals(before);
    }

    private Position entryPosition(
            String queue, Position at, QueueState state, AcquiredQueues held) {
        if (at == null) {
            return enter(queue, state, held);
        }
        Loss loss = Loss.between(at, state);
        return loss == null ? at : io.handleLoss(queue, at, loss);
    }

    private Position enter(String queue, QueueState state, AcquiredQueues held) {
        if (!state.exists() || state.born().isEmpty()) {
            io.dropExpiredQueue(queue);
            return null;
        }
        Position decided = held.entering().get(queue);
        boolean counts = decided != null && decided.born().equals(state.born());
        OffsetBound first = counts
                ? OffsetBound.afterId(decided.last())
                : firstStart(options, queue, held.isFirstBatch());
        long last = startsAfter(
                queue,
                withoutTimes(Map.of(queue, first), options.timestampStrategy(), io::askIdsAtTimes)
                        .get(queue),
                state);
        Loss loss = findLossAtStart(last, state);
        if (loss != null && options.failOnDataLoss()) {
            io.handleLoss(queue, null, loss);
        }
        last = Math.max(last, state.floor());
        return new Position(
                state.born(), last, last == state.newest() ? state.newestMark() : "", last, 0);
    }

    /**
     * Return the start of a queue that is not in the checkpoint: its oldest message, or the start
     * of startingOffsets where that applies.
     */
    public static OffsetBound firstStart(ReadOptions options, String queue, boolean isFirstBatch) {
        return isFirstBatch ? options.startOf(queue) : OffsetBound.EARLIEST;
    }

    /**
     * Return the starts with each time replaced by the last id before it. {@code unknown}:
     * {@code earliest} or {@code latest} where a clock does not reach back to the time,
     * {@code error} to throw BUSMQ_TIME_UNKNOWN. Throws BUSMQ_CONFIG for a time that is still to
     * come.
     */
    public static Map<String, OffsetBound> withoutTimes(
            Map<String, OffsetBound> starts,
            String unknown,
            Function<Map<String, Long>, Map<String, TimeLookupResult>> find) {
        Map<String, Long> times = new HashMap<>();
        starts.forEach((queue, start) -> {
            if (start.kind() == OffsetBound.Kind.TIME) {
                times.put(queue, start.value());
            }
        });
        Map<String, OffsetBound> found = new HashMap<>(starts);
        (times.isEmpty() ? Map.<String, TimeLookupResult>of() : find.apply(times))
                .forEach((queue, at) -> found.put(
                        queue,
                        at.id() >= 0 || unknown.equals("error")
                                ? OffsetBound.afterId(at.lastId(queue))
                                : unknown.equals("latest")
                                        ? OffsetBound.LATEST
                                        : OffsetBound.EARLIEST));
        return found;
    }

    /**
     * The last id that counts as read where a queue enters the query. Throws for one that was not
     * given out yet.
     */
    public static long startsAfter(String queue, OffsetBound start, QueueState state) {
        long last =
                switch (start.kind()) {
                    case EARLIEST -> state.floor();
                    case LATEST -> state.lastId();
                    case NEWEST -> Math.max(state.floor(), state.lastId() - start.value());
                    default -> start.value();
                };
        checkGiven("startingOffsets", queue, last, state);
        return last;
    }

    /** Throws BUSMQ_CONFIG where an option names an id that was not given out yet. */
    public static void checkGiven(String option, String queue, long last, QueueState state) {
        if (last > state.lastId()) {
            String to = option.equals("startingOffsets")
                    ? "begin with the next message"
                    : "end with the newest message";
            throw BusException.configError(option + " says " + PyText.repr(queue)
                    + " is read up to id " + last + ", but its last id is " + state.lastId()
                    + ". Name that id or a smaller one, or " + option + "=latest to " + to);
        }
    }

    /** Return the lost range after an id of startingOffsets; null where no message is gone. */
    public static Loss findLossAtStart(long last, QueueState state) {
        long ids = state.floor() - last;
        return ids <= 0
                ? null
                : new Loss(
                        "removed",
                        "ids from " + (last + 1) + " on, as startingOffsets says",
                        Loss.describeStored(state),
                        ids);
    }

    /** The fingerprints of the messages at the goals. */
    private Map<String, String> goalMarks(Map<String, Long> goals, BatchPlanInput found) {
        Map<String, String> marks = new HashMap<>(found.marks());
        Map<String, Long> unknown = new HashMap<>(goals);
        unknown.keySet()
                .removeIf(queue -> goals.get(queue).equals(found.markIds().get(queue)));
        if (!unknown.isEmpty()) {
            marks.putAll(io.askFingerprints(unknown));
        }
        return marks;
    }

    /** Within {@code maxMessagesPerTrigger}; whether that made it less. */
    private boolean shareOutMaxMessages(Map<String, Long> available) {
        Long most = options.maxMessages();
        boolean over = most != null
                && available.values().stream().mapToLong(Long::longValue).sum() > most;
        if (over) {
            available.putAll(WorkSplitter.shareOut(available, most));
        }
        return over;
    }

    private void applyCaps(Map<String, Position> entries, Map<String, Long> goals) {
        Map<String, Long> available = new HashMap<>();
        goals.forEach(
                (queue, goal) -> available.put(queue, goal - entries.get(queue).last()));
        shareOutMaxMessages(available);
        if (options.maxBytes() != null) {
            available.putAll(withinBytes(entries, available, options.maxBytes()));
        }
        available.forEach((queue, rows) -> goals.put(queue, entries.get(queue).last() + rows));
    }

    /**
     * Rows such that their values fit the budget: every queue gets the same part, what one leaves
     * goes to the next; at least one row in all. A queue whose next message was larger than its
     * part is first in line for the next batch, and may use all of it.
     */
    private Map<String, Long> withinBytes(
            Map<String, Position> entries, Map<String, Long> available, long budget) {
        List<String> line = available.keySet().stream()
                .filter(queue -> available.get(queue) > 0)
                .sorted(Comparator.comparing((String queue) -> !passedOver.contains(queue))
                        .thenComparing(available::get)
                        .thenComparing(OffsetJson.BY_CODE_POINT))
                .toList();
        Map<String, Long> fitting = new HashMap<>();
        available.keySet().forEach(queue -> fitting.put(queue, 0L));
        long left = budget;
        for (int place = 0; place < line.size() && left > 0; place++) {
            String queue = line.get(place);
            long first = entries.get(queue).last() + 1;
            long part = passedOver.contains(queue) ? left : left / (line.size() - place);
            long[] reached =
                    io.askLastIdWithinBytes(queue, first, first + available.get(queue) - 1, part);
            if (reached[0] < first && place == 0 && part == budget) {
                // One message over the whole budget: it must pass alone, or the queue stands still
                // for ever.
                reached = new long[] {first, budget};
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
