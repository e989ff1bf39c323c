package busmq.spark.source;

import busmq.spark.PyText;
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
    private static final int MAX_SHOWN_RANGES = 20;

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
    private String lastQueue;
    private long lastId;

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

    /** Return the ids of this task, and the last one that it has handed out. */
    String describe() {
        StringBuilder found = new StringBuilder("[busmq] this task reads ");
        for (Range range : ranges.subList(0, Math.min(ranges.size(), MAX_SHOWN_RANGES))) {
            found.append("queue ").append(PyText.repr(range.queue())).append(" ids ");
            found.append(range.first()).append("..").append(range.last()).append(", ");
        }
        if (ranges.size() > MAX_SHOWN_RANGES) {
            found.append(ranges.size() - MAX_SHOWN_RANGES).append(" more ranges, ");
        }
        if (lastId == 0) {
            return found.append("and has handed out no row").toString();
        }
        found.append("and the last row it handed out is id ").append(lastId);
        return found.append(" of queue ").append(PyText.repr(lastQueue)).toString();
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
        lastId = chunk.first() + at - chunk.from();
        lastQueue = chunk.queue();
        row = rowMaker.makeRow(lastQueue, lastId, chunk.value(at), chunkTimes);
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
