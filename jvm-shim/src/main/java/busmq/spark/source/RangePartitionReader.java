package busmq.spark.source;

import busmq.spark.core.Range;
import busmq.spark.options.ReadOptions;
import busmq.spark.store.ConsecutiveMessages;
import busmq.spark.store.MultiRangeReader;
import busmq.spark.store.ReadStore;
import busmq.spark.store.TimesOfIds;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.PartitionReader;

/** The rows of some ranges, one range after the other. */
final class RangePartitionReader implements PartitionReader<InternalRow> {
    private final ReadStore store;
    private final RowMaker rowMaker;
    private final boolean strict;
    private final QueueRollbackCheck rollbackCheck;
    private final boolean checkTravelsWithReads;
    private boolean started;
    private final MultiRangeReader reader;
    private final List<Range> ranges;
    private Map<Range, TimesOfIds> times = Map.of();
    private TimesOfIds chunkTimes = TimesOfIds.NONE;
    private ConsecutiveMessages chunk;
    private int at;
    private InternalRow row;

    RangePartitionReader(ReadOptions options, RowMaker rowMaker, RangePartition partition) {
        store = new ReadStore(options.redis());
        this.rowMaker = rowMaker;
        strict = options.failOnDataLoss();
        ranges = partition.ranges();
        rollbackCheck = new QueueRollbackCheck(store, partition.ends(), strict);
        checkTravelsWithReads = rollbackCheck.canTravelWithReader(ranges);
        reader = new MultiRangeReader(
                store, ranges, strict, checkTravelsWithReads ? rollbackCheck : null);
    }

    @Override
    public boolean next() {
        if (!started) {
            started = true;
            if (!checkTravelsWithReads) {
                rollbackCheck.checkAll();
            }
            // Before the rows, as in Python: what is read is still there then.
            if (rowMaker.hasTimestamp()) {
                times = store.times(ranges);
            }
        }
        while (chunk == null || at == chunk.until()) {
            chunk = reader.next();
            if (chunk == null) {
                if (strict && !reader.isCheckedAtEnd()) {
                    rollbackCheck.checkAll();
                }
                return false;
            }
            if (!strict) {
                rollbackCheck.check(reader.newlyRead());
            }
            if (rollbackCheck.isUnchanged(chunk.queue())) {
                at = chunk.from();
                chunkTimes = times.getOrDefault(reader.range(), TimesOfIds.NONE);
            } else {
                chunk = null;
                reader.skipRange(); // its next batch begins with its oldest message
            }
        }
        row = rowMaker.makeRow(
                chunk.queue(), chunk.first() + at - chunk.from(), chunk.value(at), chunkTimes);
        at++;
        return true;
    }

    @Override
    public InternalRow get() {
        return row;
    }

    @Override
    public void close() {
        store.close();
    }
}
