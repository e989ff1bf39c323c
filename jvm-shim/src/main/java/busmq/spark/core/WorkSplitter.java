package busmq.spark.core;

import busmq.spark.SharedPythonConstants;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Decisions of the source, without a socket: how much to read, and how to cut it. Ranges are
 * first..last, inclusive.
 */
public final class WorkSplitter {
    /** With more ranges than this, small ones share a task. */
    static final int MAX_UNPACKED_RANGES = SharedPythonConstants.intNumber("maxUnpackedRanges");

    /** A shared task is full when it reads so many messages. */
    static final int ROWS_PER_PACKED_TASK = SharedPythonConstants.intNumber("rowsPerPackedTask");

    private WorkSplitter() {}

    /** Return the ranges without the skipped ids of their queues: a range is cut at each. */
    public static List<Range> rangesWithout(
            List<Range> ranges, Map<String, ? extends Collection<Long>> skipped) {
        List<Range> found = new ArrayList<>();
        for (Range part : ranges) {
            long first = part.first();
            for (long id : skipped.containsKey(part.queue())
                    ? skipped.get(part.queue())
                    : List.<Long>of()) {
                if (first <= id && id <= part.last()) {
                    if (first < id) {
                        found.add(part.within(first, id - 1));
                    }
                    first = id + 1;
                }
            }
            if (first <= part.last()) {
                found.add(part.within(first, part.last()));
            }
        }
        return found;
    }

    /**
     * Deal {@code most} messages out to queues that have {@code available}: equal shares, and what
     * small queues leave goes to the others.
     *
     * <p>Nothing is left over while a queue could take more; a rest that cannot be divided goes to
     * the queues with the most.
     */
    public static Map<String, Long> shareOut(Map<String, Long> available, long most) {
        Map<String, Long> given = new LinkedHashMap<>();
        long each = most / Math.max(1, available.size());
        if (most == each * available.size()
                && available.values().stream().allMatch(rows -> rows >= each)) {
            // Nothing to deal out further, and no order needed.
            available.keySet().forEach(queue -> given.put(queue, each));
            return given;
        }
        available.keySet().forEach(queue -> given.put(queue, 0L));
        List<String> open = new ArrayList<>(available.keySet().stream()
                .filter(queue -> available.get(queue) > 0)
                .toList());
        open.sort(Comparator.comparing((String queue) -> available.get(queue))
                .thenComparing(OffsetJson.BY_CODE_POINT));
        long left = most;
        for (int at = 0; at < open.size() && left > 0; at++) {
            int waiting = open.size() - at;
            long fair = left / waiting;
            if (fair == 0) {
                open.subList(open.size() - (int) left, open.size())
                        .forEach(queue -> given.merge(queue, 1L, Long::sum));
                break;
            }
            // The smallest: if it has less than its share, the others' share grows.
            String queue = open.get(at);
            given.put(queue, Math.min(available.get(queue), fair));
            left -= given.get(queue);
        }
        return given;
    }

    /**
     * Cut the ids of a range into at most {@code parts} runs of nearly the same length; keeps
     * order, loses none.
     */
    public static List<Range> split(Range range, long parts) {
        long size = range.rows();
        long most = Math.max(0, Math.min(parts, size));
        List<Range> runs = new ArrayList<>();
        for (long i = 0; i < most; i++) {
            long first = range.first() + size * i / most;
            runs.add(new Range(
                    range.queue(),
                    range.born(),
                    first,
                    range.first() + size * (i + 1) / most - 1,
                    range.server()));
        }
        return runs;
    }

    /**
     * Return the ranges of each task. A task has one range, cut further for the two options (null:
     * not set). Many small ranges share a task.
     */
    public static List<List<Range>> tasks(List<Range> ranges, Long minPartitions, Long maxRows) {
        long total = ranges.stream().mapToLong(Range::rows).sum();
        List<List<Range>> cut = new ArrayList<>();
        for (Range range : ranges) {
            long parts = 1;
            if (minPartitions != null && minPartitions > ranges.size()) {
                // rint: halves to even, as in Python.
                parts = Math.max(
                        1, (long) Math.rint((double) minPartitions * range.rows() / total));
            }
            if (maxRows != null) {
                parts = Math.max(parts, (range.rows() + maxRows - 1) / maxRows);
            }
            cut.add(parts == 1 ? List.of(range) : split(range, parts));
        }
        if (cut.stream().mapToInt(List::size).sum()
                <= Math.max(MAX_UNPACKED_RANGES, minPartitions == null ? 0 : minPartitions)) {
            return cut.stream().flatMap(List::stream).map(List::of).toList();
        }
        return packSmallRanges(cut);
    }

    /**
     * Small ranges share tasks. All parts of a queue do, or none of them does: so they stay in
     * their order.
     */
    private static List<List<Range>> packSmallRanges(List<List<Range>> cut) {
        List<List<Range>> packed = new ArrayList<>();
        List<Range> shared = new ArrayList<>();
        long rows = 0;
        for (List<Range> parts : cut) {
            if (parts.stream().anyMatch(range -> range.rows() >= ROWS_PER_PACKED_TASK)) {
                parts.forEach(part -> packed.add(List.of(part)));
                continue;
            }
            for (Range range : parts) {
                shared.add(range);
                rows += range.rows();
                if (rows >= ROWS_PER_PACKED_TASK) {
                    packed.add(List.copyOf(shared));
                    shared.clear();
                    rows = 0;
                }
            }
        }
        if (!shared.isEmpty()) {
            packed.add(List.copyOf(shared));
        }
        return packed;
    }

    /**
     * Deal queues out to at most {@code readers} readers that run at the same time; in turn, so
     * that each has as many as the others.
     */
    public static List<List<String>> queuesPerReader(Collection<String> queues, int readers) {
        List<List<String>> groups = new ArrayList<>();
        int most = Math.min(Math.max(1, readers), queues.size());
        for (int i = 0; i < most; i++) {
            groups.add(new ArrayList<>());
        }
        int at = 0;
        for (String queue : queues) {
            groups.get(at++ % most).add(queue);
        }
        return groups;
    }
}
