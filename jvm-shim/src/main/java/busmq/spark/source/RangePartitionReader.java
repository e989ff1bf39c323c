package busmq.spark.source;

import busmq.spark.core.Range;
import busmq.spark.options.ReadOptions;
import busmq.spark.store.MessageRows;
import busmq.spark.store.RangesReader;
import busmq.spark.store.ReadStore;
import busmq.spark.store.TimesOfIds;
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
    private final RangesReader reader;
    private Range timed;
    private TimesOfIds times = TimesOfIds.NONE;
    private MessageRows chunk;
    private int at;
    private InternalRow row;

    RangePartitionReader(ReadOptions options, RowMaker rowMaker, RangePartition partition) {
        store = new ReadStore(options.redis());
        this.rowMaker = rowMaker;
        strict = options.failOnDataLoss();
        rollbackCheck = new QueueRollbackCheck(store, partition.ends(), strict);
        checkTravelsWithReads = rollbackCheck.canTravelWithReader(partition.ranges());
        reader = new RangesReader(store, partition.ranges(), strict, checkTravelsWithReads ? rollbackCheck : null);
    }

    @Override
    public boolean next() {
        if (!started) {
            started = true;
            if (!checkTravelsWithReads) {
                rollbackCheck.checkAll();
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
            if (rollbackCheck.isUnchanged(chunk.queue())) {
                at = chunk.from();
                fetchTimes(reader.range());
            } else {
                chunk = null;
                reader.skipRange(); // its next batch begins with its oldest message
            }
        }
        row = rowMaker.makeRow(chunk.queue(), chunk.first() + at - chunk.from(), chunk.value(at), times);
        at++;
        return true;
    }

    private void fetchTimes(Range range) {
        if (rowMaker.hasTimestamp() && range != timed) {
            times = store.times(range.queue(), range.born(), range.first(), range.last());
            timed = range;
        }
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
