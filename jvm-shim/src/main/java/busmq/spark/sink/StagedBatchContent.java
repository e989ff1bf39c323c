package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import busmq.spark.SharedPythonConstants;
import busmq.spark.PyText;
import busmq.spark.core.TopicPartitioning;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * The content of a batch, to distinguish it from another of the same number: its span, if known,
 * and the rows of each queue (writing/sink.py).
 */
record StagedBatchContent(String span, List<StagedList> staged) {
    private static final int MAX_QUEUES_IN_ERROR =
            SharedPythonConstants.intNumber("maxQueuesInError");
    private static final String CHECKPOINT_OLDER_REMEDY =
            SharedPythonConstants.text("checkpointOlderRemedy");
    private static final String TWO_WRITES_REMEDY = SharedPythonConstants.text("twoWritesRemedy");
    private static final String QUERY_VARIES_REMEDY =
            SharedPythonConstants.text("queryVariesRemedy");

    /** The rows of one queue; no digest when one part has none. */
    private record RowSum(long rows, Long digest) {
        RowSum plus(StagedList part) {
            boolean known = digest != null && part.digest() != null;
            return new RowSum(
                    rows + part.rows(),
                    known ? StagedList.totalDigest(digest, part.digest()) : null);
        }
    }

    /**
     * Return the differences of {@code now} from this batch, as details of BATCH_CHANGED; empty for
     * none.
     */
    Map<String, Object> differencesTo(StagedBatchContent now) {
        BatchSpan ours = BatchSpan.parse(span);
        BatchSpan theirs = BatchSpan.parse(now.span);
        if (!ours.digest().isEmpty() && !theirs.digest().isEmpty()) {
            return ours.digest().equals(theirs.digest())
                    ? Map.of()
                    : Map.of(
                            "by",
                            "offsets",
                            "found",
                            "up to " + ours.end(),
                            "expected",
                            "up to " + theirs.end(),
                            "remedy",
                            CHECKPOINT_OLDER_REMEDY);
        }
        Map<String, RowSum> before = rowSums();
        Map<String, RowSum> after = now.rowSums();
        boolean unknown = before.values().stream().anyMatch(sum -> sum.digest == null)
                || after.values().stream().anyMatch(sum -> sum.digest == null);
        if (before.equals(after) || (unknown && rowCounts(before).equals(rowCounts(after)))) {
            return Map.of();
        }
        return Map.of(
                "by",
                "rows",
                "found",
                describe(before),
                "expected",
                describe(after),
                "remedy",
                TWO_WRITES_REMEDY + ". " + CHECKPOINT_OLDER_REMEDY + ". " + QUERY_VARIES_REMEDY);
    }

    /**
     * Whether a copy of the checkpoint that recorded this batch writes {@code now} to other queues.
     */
    boolean hasOtherQueuesOfACopy(StagedBatchContent now) {
        String ours = BatchSpan.parse(span).checkpoint();
        String theirs = BatchSpan.parse(now.span).checkpoint();
        return !ours.isEmpty()
                && !theirs.isEmpty()
                && !ours.equals(theirs)
                && !targets(staged, false).containsAll(targets(now.staged, false));
    }

    /** The queues of staged lists, or with {@code topics} their topics, in order. */
    static Set<String> targets(List<StagedList> staged, boolean topics) {
        Set<String> found = new LinkedHashSet<>();
        for (StagedList part : staged) {
            TopicPartitioning.Partition place =
                    topics ? TopicPartitioning.topicPartition(part.queue()) : null;
            if (part.rows() > 0) {
                found.add(place == null ? part.queue() : place.topic());
            }
        }
        return found;
    }

    /** The error for a batch that is recorded for other targets than it is written to. */
    static BusException targetsChangedError(
            String sink, long batch, Set<String> before, Set<String> now) {
        return BusException.of(
                ErrorKind.SINK_TARGETS,
                "sink",
                sink,
                "batch",
                batch,
                "found",
                describeTargets(before),
                "expected",
                describeTargets(now));
    }

    private static String describeTargets(Set<String> names) {
        int more = names.size() - MAX_QUEUES_IN_ERROR;
        return names.stream()
                        .limit(MAX_QUEUES_IN_ERROR)
                        .map(PyText::repr)
                        .collect(Collectors.joining(", "))
                + (more > 0 ? " and " + more + " more" : "");
    }

    private Map<String, RowSum> rowSums() {
        Map<String, RowSum> found = new LinkedHashMap<>();
        for (StagedList part : staged) {
            if (part.rows() > 0) {
                found.merge(
                        part.queue(),
                        new RowSum(part.rows(), part.digest()),
                        (sum, same) -> sum.plus(part));
            }
        }
        return found;
    }

    private static Map<String, Long> rowCounts(Map<String, RowSum> sums) {
        Map<String, Long> found = new LinkedHashMap<>();
        sums.forEach((queue, sum) -> found.put(queue, sum.rows));
        return found;
    }

    private static String describe(Map<String, RowSum> sums) {
        List<String> shown = new ArrayList<>();
        sums.forEach((queue, sum) -> shown.add(sum.rows + " rows for " + PyText.repr(queue)));
        if (shown.isEmpty()) {
            return "no rows";
        }
        int more = shown.size() - MAX_QUEUES_IN_ERROR;
        return String.join(", ", shown.subList(0, Math.min(MAX_QUEUES_IN_ERROR, shown.size())))
                + (more > 0 ? " and " + more + " more queues" : "");
    }
}
