package busmq.spark.source;

import busmq.spark.SharedPythonConstants;
import busmq.spark.core.Position;
import busmq.spark.store.ReaderRecord;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkContext;
import scala.Option;

/**
 * The record of one reader, made anew for each renewal of its lease. Its fields may be set from any
 * thread.
 */
final class ReaderAnnouncer {
    private static final long STARTED_MS = System.currentTimeMillis();

    private final Map<String, Object> facts = new LinkedHashMap<>();
    private final String field;
    private volatile Map<String, Long> own = Map.of();
    private volatile List<Long> planned;
    private volatile List<Long> committed;
    private volatile String error = "";

    /** Made in the thread of the query, whose properties name it. */
    ReaderAnnouncer(String subscription, String token, String folder) {
        field = ReaderRecord.leaseField(subscription);
        SparkContext spark = SparkContext.getOrCreate();
        String run = property(spark, "spark.jobGroup.id");
        String description = property(spark, "spark.job.description");
        String queryName = description.matches("(?s).+(<br/>|\n)id = .*")
                ? description.replaceFirst("(?s)(<br/>|\n)id = .*", "")
                : "";
        String clientName = System.getenv().getOrDefault("BUSMQ_CLIENT_NAME", "");
        facts.put("kind", "query");
        facts.put("name", firstOf(queryName, clientName, spark.appName()));
        facts.put("id", ReaderRecord.idOf(token));
        facts.put("query", property(spark, "sql.streaming.queryId"));
        facts.put("run", run);
        facts.put("app", spark.applicationId());
        Option<String> ui = spark.uiWebUrl();
        facts.put("ui", ui.isDefined() ? ui.get() : "");
        facts.put("checkpoint", folder.replaceFirst("/sources/[^/]*$", ""));
        facts.put("host", host());
        facts.put("pid", ProcessHandle.current().pid());
        facts.put("engine", "java");
        facts.put("version", SharedPythonConstants.version());
        facts.put("started", STARTED_MS);
    }

    /** A batch begins. */
    void notePlanned(Map<String, Position> begin, Map<String, Position> end) {
        long rows = 0;
        for (Map.Entry<String, Position> each : end.entrySet()) {
            Position before = begin.get(each.getKey());
            Long start = each.getValue().start();
            long from = before != null ? before.last() : start != null ? start : 0;
            rows += Math.max(0, each.getValue().last() - from);
        }
        planned = mark(rows);
    }

    /** The query has finished everything up to these positions. */
    void noteFinished(Map<String, Position> positions) {
        Map<String, Long> ids = new HashMap<>(own);
        positions.forEach((queue, position) -> ids.put(queue, position.last()));
        own = ids;
    }

    /** A batch is done, which ends at these positions. */
    void noteCommitted(Map<String, Position> done) {
        Map<String, Long> before = own;
        noteFinished(done);
        long rows = 0;
        for (Map.Entry<String, Position> each : done.entrySet()) {
            long last = each.getValue().last();
            rows += Math.max(0, last - before.getOrDefault(each.getKey(), last));
        }
        committed = mark(rows);
        error = "";
    }

    /** The next record has this error. */
    void noteError(Throwable thrown) {
        error = String.valueOf(thrown.getMessage());
    }

    /** Return the present record for a renewal. */
    ReaderRecord.Announcement announcement() {
        Map<String, Object> said = new LinkedHashMap<>(facts);
        said.put("at", System.currentTimeMillis());
        said.put("planned", planned);
        said.put("committed", committed);
        said.put("error", error);
        return new ReaderRecord.Announcement(field, ReaderRecord.encode(said), own);
    }

    private static List<Long> mark(long rows) {
        SparkContext spark = SparkContext.getOrCreate();
        String batch = property(spark, "streaming.sql.batchId");
        return batch.matches("\\d{1,15}")
                ? List.of(System.currentTimeMillis(), rows, Long.valueOf(batch))
                : List.of(System.currentTimeMillis(), rows);
    }

    private static String property(SparkContext spark, String name) {
        String found = spark.getLocalProperty(name);
        return found == null ? "" : found;
    }

    private static String firstOf(String... texts) {
        for (String each : texts) {
            if (!each.isEmpty()) {
                return each;
            }
        }
        return "";
    }

    private static String host() {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException error) {
            return "";
        }
    }
}
