package busmq.spark.sink;

import busmq.spark.SharedPythonConstants;
import busmq.spark.PyText;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The content of a batch, to distinguish it from another of the same number: its span, if known, and the rows of each queue (core/sink.py). */
record StagedBatchContent(String span, List<StagedList> staged) {
    private static final int MAX_QUEUES_IN_ERROR = SharedPythonConstants.intNumber("maxQueuesInError");
    private static final String CHECKPOINT_OLDER_REMEDY = SharedPythonConstants.text("checkpointOlderRemedy");
    private static final String QUERY_VARIES_REMEDY = SharedPythonConstants.text("queryVariesRemedy");

    /** The rows of one queue; no digest when one part has none. */
    private record RowSum(long rows, Long digest) {
        RowSum plus(StagedList part) {
            boolean known = digest != null && part.digest() != null;
            return new RowSum(rows + part.rows(), known ? StagedList.totalDigest(digest, part.digest()) : null);
        }
    }

    /** How {@code now} differs from this batch, as details of BATCH_CHANGED; empty when it is the same. */
    Map<String, Object> differencesTo(StagedBatchContent now) {
        String[] ours = span.split(":", 2);
        String[] theirs = now.span.split(":", 2);
        if (!ours[0].isEmpty() && !theirs[0].isEmpty()) {
            return ours[0].equals(theirs[0]) ? Map.of()
                    : Map.of("by", "offsets", "found", "up to " + ours[1], "expected", "up to " + theirs[1], "remedy", CHECKPOINT_OLDER_REMEDY);
        }
        Map<String, RowSum> before = rowSums();
        Map<String, RowSum> after = now.rowSums();
        boolean unknown = before.values().stream().anyMatch(sum -> sum.digest == null) || after.values().stream().anyMatch(sum -> sum.digest == null);
        if (before.equals(after) || (unknown && rowCounts(before).equals(rowCounts(after)))) {
            return Map.of();
        }
        return Map.of("by", "rows", "found", describe(before), "expected", describe(after), "remedy", CHECKPOINT_OLDER_REMEDY + ". " + QUERY_VARIES_REMEDY);
    }

    private Map<String, RowSum> rowSums() {
        Map<String, RowSum> found = new LinkedHashMap<>();
        for (StagedList part : staged) {
            if (part.rows() > 0) {
                found.merge(part.queue(), new RowSum(part.rows(), part.digest()), (sum, same) -> sum.plus(part));
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
        return String.join(", ", shown.subList(0, Math.min(MAX_QUEUES_IN_ERROR, shown.size()))) + (more > 0 ? " and " + more + " more queues" : "");
    }
}
