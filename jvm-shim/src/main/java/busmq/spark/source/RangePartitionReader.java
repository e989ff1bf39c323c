package busmq.spark.source;

import busmq.spark.core.Range;
import busmq.spark.options.ReadOptions;
import busmq.spark.store.MessageRows;
import busmq.spark.store.RangeReader;
import busmq.spark.store.ReadStore;
import busmq.spark.store.TimesOfIds;
import java.util.Iterator;
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
    private final Iterator<Range> ranges;
    private RangeReader reader;
    private TimesOfIds times = TimesOfIds.NONE;
    private MessageRows chunk;
    private int at;
    private InternalRow row;

    RangePartitionReader(ReadOptions options, RowMaker rowMaker, RangePartition partition) {
        store = new ReadStore(options.redis());
        this.rowMaker = rowMaker;
        strict = options.failOnDataLoss();
        ranges = partition.ranges().iterator();
        partition.ranges().forEach(range -> store.setServer(range.queue(), range.server()));
        rollbackCheck = new QueueRollbackCheck(store, partition.ends(), strict);
        checkTravelsWithReads = rollbackCheck.canTravelWithReader(partition.ranges());
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
            chunk = reader == null ? null : reader.next();
            if (chunk != null && rollbackCheck.isUnchanged(chunk.queue())) {
                at = chunk.from();
            } else if (chunk != null) {
                chunk = null;
                reader = null; // its next batch begins with its oldest message
            } else if (ranges.hasNext()) {
                Range range = ranges.next();
                times = rowMaker.hasTimestamp() ? store.times(range.queue(), range.born(), range.first(), range.last()) : TimesOfIds.NONE;
                reader = new RangeReader(store, range, strict, checkTravelsWithReads ? rollbackCheck : null);
            } else {
                if (strict && reader != null && !reader.isCheckedAtEnd()) {
                    rollbackCheck.checkAll();
                }
                return false;
            }
        }
        row = rowMaker.makeRow(chunk.queue(), chunk.first() + at - chunk.from(), chunk.value(at), times);
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
