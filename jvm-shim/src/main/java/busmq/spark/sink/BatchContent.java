package busmq.spark.sink;

import busmq.spark.Contract;
import busmq.spark.PyText;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The content of a batch, to distinguish it from another of the same number: its span, if known, and the rows of each queue (core/sink.py). */
record BatchContent(String span, List<StagedList> staged) {
    private static final int SHOWN = Contract.whole("queuesShown");
    private static final String OLDER = Contract.text("older");
    private static final String VARIES = Contract.text("varies");

    /** The rows of one queue; no digest when one part has none. */
    private record Sum(long rows, Long digest) {
        Sum plus(StagedList part) {
            boolean known = digest != null && part.digest() != null;
            return new Sum(rows + part.rows(), known ? StagedList.total(digest, part.digest()) : null);
        }
    }

    /** How {@code now} differs from this batch, as details of BATCH_CHANGED; empty when it is the same. */
    Map<String, Object> changed(BatchContent now) {
        String[] ours = span.split(":", 2);
        String[] theirs = now.span.split(":", 2);
        if (!ours[0].isEmpty() && !theirs[0].isEmpty()) {
            return ours[0].equals(theirs[0]) ? Map.of()
                    : Map.of("by", "offsets", "found", "up to " + ours[1], "expected", "up to " + theirs[1], "remedy", OLDER);
        }
        Map<String, Sum> before = sums();
        Map<String, Sum> after = now.sums();
        boolean unknown = before.values().stream().anyMatch(sum -> sum.digest == null) || after.values().stream().anyMatch(sum -> sum.digest == null);
        if (before.equals(after) || (unknown && rows(before).equals(rows(after)))) {
            return Map.of();
        }
        return Map.of("by", "rows", "found", shown(before), "expected", shown(after), "remedy", OLDER + ". " + VARIES);
    }

    private Map<String, Sum> sums() {
        Map<String, Sum> found = new LinkedHashMap<>();
        for (StagedList part : staged) {
            if (part.rows() > 0) {
                found.merge(part.queue(), new Sum(part.rows(), part.digest()), (sum, same) -> sum.plus(part));
            }
        }
        return found;
    }

    private static Map<String, Long> rows(Map<String, Sum> sums) {
        Map<String, Long> found = new LinkedHashMap<>();
        sums.forEach((queue, sum) -> found.put(queue, sum.rows));
        return found;
    }

    private static String shown(Map<String, Sum> sums) {
        List<String> shown = new ArrayList<>();
        sums.forEach((queue, sum) -> shown.add(sum.rows + " rows for " + PyText.repr(queue)));
        if (shown.isEmpty()) {
            return "no rows";
        }
        int more = shown.size() - SHOWN;
        return String.join(", ", shown.subList(0, Math.min(SHOWN, shown.size()))) + (more > 0 ? " and " + more + " more queues" : "");
    }
}
