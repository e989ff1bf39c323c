package busmq.spark.source;

import busmq.spark.BusException;
import busmq.spark.core.Position;
import busmq.spark.core.WorkSplitter;
import busmq.spark.options.ReadOptions;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;

/**
 * Which reader follows which queue in a batch of real-time mode, and where all of them have come
 * to.
 *
 * <p>Readers of a batch run all at the same time, for as long as the batch does: Spark silently
 * does not start one that finds no slot.
 */
final class RealTimePlan {
    /** A slow start of a query may cost a reader a batch; this is no slow start any more. */
    private static final int MOST_BATCHES_WITHOUT_SLOT = 3;
    /** Polls of all readers of a query together, while no push is signalled. */
    private static final long POLLS_PER_S = 15;

    private static final long MS_PER_S = 1000;

    private final ReadOptions options;
    private Map<String, Position> entries = Map.of();
    private final Map<String, Set<String>> executorsByQueue = new HashMap<>();
    private final Map<String, Long> untilMs = new HashMap<>();
    private Long gapMs;
    private int batchesWithoutSlot;

    RealTimePlan(ReadOptions options) {
        this.options = options;
    }

    /**
     * {@code entries}: where the batch begins in each queue; {@code begin}: where the batch before
     * has ended.
     *
     * <p>{@code isFirstBatch}: what {@code latest} means must be in the log before anything is
     * read: a driver that dies in its first batch would else begin after what has come meanwhile.
     * So that batch ends at once; the engine begins the next one without a pause.
     *
     * <p>{@code shared}: the lives of queues that another source of the query reads, too.
     *
     * <p>{@code skipped}: the ids that the readers pass over.
     *
     * <p>Without any queue, one reader of none sleeps for as long as a batch lasts: a batch without
     * readers would end at once, too, again and again.
     */
    InputPartition[] partitions(
            Map<String, Position> entries,
            Map<String, Position> begin,
            Map<String, Integer> servers,
            boolean isFirstBatch,
            Set<String> shared,
            Map<String, ? extends Set<Long>> skipped) {
        this.entries = entries;
        List<List<String>> groups = entries.isEmpty()
                ? List.of(List.of())
                : WorkSplitter.queuesPerReader(entries.keySet(), countReaders());
        long commands = options.redis().cluster() ? entries.size() : groups.size();
        long pollMs = pollMs(options.idlePollMs(), commands);
        boolean pin = isFirstBatch && !entries.isEmpty() && options.startDependsOnTime();
        List<InputPartition> found = new ArrayList<>();
        for (List<String> group : groups) {
            found.add(new RealTimePartition(
                    group.stream()
                            .map(queue -> new RealTimePartition.QueueEntry(
                                    queue,
                                    servers.get(queue),
                                    entries.get(queue),
                                    entries.get(queue) != begin.get(queue),
                                    shared.contains(entries.get(queue).born()),
                                    executorsOf(queue),
                                    skipped.containsKey(queue)
                                            ? Set.copyOf(skipped.get(queue))
                                            : Set.of()))
                            .toList(),
                    pollMs,
                    pin));
        }
        return found.toArray(new InputPartition[0]);
    }

    /**
     * Return the pause in ms of each reader between two polls that cost {@code commands} in all.
     */
    static long pollMs(long idlePollMs, long commands) {
        return Math.max(idlePollMs, (commands * MS_PER_S + POLLS_PER_S - 1) / POLLS_PER_S);
    }

    /**
     * Return the end of the batch: the positions of its readers, and the start for queues whose
     * reader did not run.
     */
    Map<String, Position> endPositions(PartitionOffset[] offsets) {
        Map<String, Position> ends = new HashMap<>(entries);
        for (PartitionOffset offset : offsets) {
            RealTimeOffset end = (RealTimeOffset) offset;
            ends.putAll(end.ends());
            end.ends().keySet().forEach(queue -> executorsByQueue
                    .computeIfAbsent(queue, name -> new HashSet<>())
                    .add(end.executor()));
        }
        gapMs = longestGapMs(offsets);
        long missed = Arrays.stream(offsets)
                .filter(offset -> !((RealTimeOffset) offset).gotSlot())
                .count();
        batchesWithoutSlot = missed == 0 ? 0 : batchesWithoutSlot + 1;
        if (batchesWithoutSlot >= MOST_BATCHES_WITHOUT_SLOT) {
            throw BusException.configError(
                    missed + " of " + offsets.length + " readers found no task slot for "
                            + MOST_BATCHES_WITHOUT_SLOT
                            + " batches, so their queues stand still; expected a slot for every"
                            + " task of every source of the query at the same time. Give the query"
                            + " more cores, or set minPartitions to how many slots this source may"
                            + " use: queues then share readers");
        }
        return ends;
    }

    /**
     * Return the longest time in ms in which a queue had no reader between the previous batch and
     * this one; null for the first batch.
     */
    Long gapMs() {
        return gapMs;
    }

    private Long longestGapMs(PartitionOffset[] offsets) {
        Long longest = null;
        for (PartitionOffset offset : offsets) {
            RealTimeOffset end = (RealTimeOffset) offset;
            if (!end.gotSlot()) {
                continue;
            }
            for (String queue : end.ends().keySet()) {
                Long before = untilMs.put(queue, end.untilMs());
                if (before != null) { // clocks of two machines may differ by more than the gap
                    longest = Math.max(longest == null ? 0 : longest, end.fromMs() - before);
                }
            }
        }
        return longest;
    }

    /** The executors that have followed a queue. */
    Set<String> executorsOf(String queue) {
        return Set.copyOf(executorsByQueue.getOrDefault(queue, Set.of()));
    }

    private int countReaders() {
        int slots = countTaskSlots();
        Long wanted = options.minPartitions();
        if (wanted != null && wanted > slots) {
            throw BusException.configError("minPartitions is " + wanted + ", but there are " + slots
                    + " task slots, and in real-time mode every reader needs one for"
                    + " itself. Lower it, or leave it out: queues then share as many"
                    + " readers as there are slots");
        }
        return wanted == null ? slots : wanted.intValue();
    }

    private static int countTaskSlots() {
        SparkContext spark = SparkContext.getOrCreate();
        try {
            int now = spark.maxNumConcurrentTasks(
                    spark.resourceProfileManager().defaultResourceProfile());
            return now > 0 ? now : spark.defaultParallelism();
        } catch (LinkageError error) {
            return spark.defaultParallelism(); // a Spark that has it elsewhere
        }
    }
}
