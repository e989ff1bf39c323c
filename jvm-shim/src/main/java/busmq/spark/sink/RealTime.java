package busmq.spark.sink;

import busmq.spark.BusException;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.SparkPlan;
import scala.collection.Iterator;

/** Whether the query whose batch is being started runs in real-time mode, which no interface tells a sink. */
public final class RealTime {
    private static final String SCAN = "RealTimeStreamScanExec";

    private RealTime() {
    }

    /** Looks at the plan of the running batch: call it on the thread that runs it. */
    static boolean isRunning() {
        String id = SparkContext.getOrCreate().getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
        QueryExecution running = id == null ? null : SQLExecution.getQueryExecution(Long.parseLong(id));
        if (running == null) {
            return false;
        }
        for (Iterator<SparkPlan> leaves = running.executedPlan().collectLeaves().iterator(); leaves.hasNext();) {
            if (leaves.next().getClass().getSimpleName().equals(SCAN)) {
                return true;
            }
        }
        return false;
    }

    /**
     * Where the end of a batch is not logged before it runs, it holds other rows when it is run again; the first time's record would stand for
     * them, and rows would be missing.
     */
    public static BusException notExactlyOnce(String where, String remedy) {
        return BusException.config("delivery=exactly-once is not possible with " + where + ", where a batch that is run again may hold other rows. "
                + remedy + "; rows since the last checkpoint then come again after a restart");
    }
}
