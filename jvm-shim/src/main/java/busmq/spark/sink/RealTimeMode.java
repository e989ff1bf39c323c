package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.v2.BatchScanExec;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanExecBase;
import org.apache.spark.sql.execution.datasources.v2.MicroBatchScanExec;
import scala.collection.Iterator;

/**
 * Whether the query whose batch is being started runs in real-time mode, for which sinks have no
 * interface.
 */
public final class RealTimeMode {
    private RealTimeMode() {}

    /**
     * Looks at the plan of the running batch: call it on the thread that runs it. An error where
     * that cannot be found out, since rows would be missing if exactly-once delivery went on in
     * real-time mode.
     */
    static boolean isRunning() {
        try {
            String id =
                    SparkContext.getOrCreate().getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
            QueryExecution running =
                    id == null ? null : SQLExecution.getQueryExecution(Long.parseLong(id));
            if (running != null) {
                return isRealTime(running);
            }
        } catch (LinkageError error) {
            throw unknownModeError(error);
        }
        throw unknownModeError(null);
    }

    private static boolean isRealTime(QueryExecution running) {
        // The plan before adaptive execution, which hides what it wraps.
        for (Iterator<SparkPlan> leaves = running.sparkPlan().collectLeaves().iterator();
                leaves.hasNext(); ) {
            if (isOpenEnded(leaves.next().getClass())) {
                return true;
            }
        }
        return false;
    }

    /**
     * Whether a node of a plan reads without an end: every scan of a connector but those known to
     * have one.
     */
    static boolean isOpenEnded(Class<?> node) {
        return DataSourceV2ScanExecBase.class.isAssignableFrom(node)
                && !MicroBatchScanExec.class.isAssignableFrom(node)
                && !BatchScanExec.class.isAssignableFrom(node);
    }

    private static BusException unknownModeError(Throwable cause) {
        return BusException.withCause(
                cause,
                ErrorKind.CONFIG,
                "reason",
                "this Spark does not show whether the query runs in real-time mode, where"
                        + " exactly-once delivery would lose rows; use Spark 4.1 to 4.3, or set"
                        + " delivery=at-least-once");
    }

    /** Rows whose origin does not say which of them were appended. */
    static BusException notExactlyOnceError(String where) {
        return BusException.configError(
                "delivery=exactly-once in real-time mode is not possible with " + where
                        + "; or set delivery=at-least-once");
    }

    /**
     * A batch whose end is not logged before it runs has other rows when it runs again. The record
     * of the first run would stand for them, and rows would be missing.
     */
    public static BusException notExactlyOnceError(String where, String remedy) {
        return BusException.configError("delivery=exactly-once is not possible with " + where
                + ", where a batch that is run again may hold other rows. " + remedy
                + "; rows since the last checkpoint then come again after a restart");
    }
}
