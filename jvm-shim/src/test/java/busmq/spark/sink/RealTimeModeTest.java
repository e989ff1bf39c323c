package busmq.spark.sink;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import org.apache.spark.sql.execution.LocalTableScanExec;
import org.apache.spark.sql.execution.datasources.v2.BatchScanExec;
import org.apache.spark.sql.execution.datasources.v2.ContinuousScanExec;
import org.apache.spark.sql.execution.datasources.v2.MicroBatchScanExec;
import org.apache.spark.sql.execution.datasources.v2.RealTimeStreamScanExec;
import org.junit.jupiter.api.Test;

class RealTimeModeTest {
    @Test
    void aScanThatIsNotKnownToHaveAnEndCountsAsRealTime() {
        List<Class<?>> scans = List.of(
                RealTimeStreamScanExec.class,
                ContinuousScanExec.class,
                MicroBatchScanExec.class,
                BatchScanExec.class,
                LocalTableScanExec.class);
        assertEquals(
                List.of(true, true, false, false, false),
                scans.stream().map(RealTimeMode::isOpenEnded).toList());
    }
}
