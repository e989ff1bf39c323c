package busmq.spark.store;

import busmq.spark.SharedPythonConstants;
import busmq.spark.core.Range;
import busmq.spark.redis.RedisCall;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * Reads ranges, one after the other; short ones that follow each other on one server in one round
 * trip (store/redis_range.py).
 */
public final class MultiRangeReader {
    private static final int SHORT_RANGE_ROWS = SharedPythonConstants.intNumber("shortRangeRows");
    private static final long SHORT_RANGE_BYTES = SharedPythonConstants.number("shortRangeBytes");
    private static final int MAX_SHORT_RANGES_PER_ROUND_TRIP =
            SharedPythonConstants.intNumber("maxShortRangesPerRoundTrip");
    private static final int MAX_SHORT_ROWS_PER_ROUND_TRIP =
            SharedPythonConstants.intNumber("maxShortRowsPerRoundTrip");

    private final ReadStore store;
    private final boolean strict;
    private final RangeReader.QueueCheck queueCheck;
    private final Deque<Range> ranges;
    /** Replies of one round trip for short ranges that are not returned yet. */
    private final Deque<ShortRange> fetched = new ArrayDeque<>();

    private final Set<String> newlyRead = new HashSet<>();
    private RangeReader reader;
    private Range range;
    private boolean checkedAtEnd;

    /** A range, and the rows that were found of it from its first id on; null for none. */
    private record ShortRange(Range range, ConsecutiveMessages rows) {
        private Range rest() {
            long next = rows == null ? range.first() : range.first() + rows.until();
            return next > range.last()
                    ? null
                    : new Range(range.queue(), range.born(), next, range.last(), range.server());
        }
    }

    /**
     * {@code strict}: throw when messages are gone; else what is left follows. {@code queueCheck}:
     * for the range of a reader of one; null for none.
     */
    public MultiRangeReader(
            ReadStore store,
            List<Range> ranges,
            boolean strict,
            RangeReader.QueueCheck queueCheck) {
        this.store = store;
        this.ranges = new ArrayDeque<>(ranges);
        this.strict = strict;
        this.queueCheck = queueCheck;
        ranges.forEach(each -> store.setServer(each.queue(), each.server()));
    }

    /**
     * The next messages, which are of {@link #range}; null at the end. Throws the loss when some
     * are gone.
     */
    public ConsecutiveMessages next() {
        newlyRead.clear();
        while (true) {
            if (reader != null) {
                ConsecutiveMessages rows = reader.next();
                if (rows != null) {
                    newlyRead.add(rows.queue());
                    return rows;
                }
                checkedAtEnd = reader.isCheckedAtEnd();
                reader = null;
            }
            if (fetched.isEmpty() && !readNextRanges()) {
                return null;
            }
            if (!fetched.isEmpty()) {
                ShortRange found = fetched.remove();
                range = found.range();
                // too large, gone, or of another incarnation: the reader of the rest finds out
                // which
                reader = found.rest() == null ? null : new RangeReader(store, found.rest(), strict);
                if (found.rows() != null) {
                    return found.rows();
                }
            }
        }
    }

    /** The range of the rows returned last. */
    public Range range() {
        return range;
    }

    /**
     * The queues of which {@link #next} has just read rows: with short ranges also some whose rows
     * the next calls return.
     */
    public Set<String> newlyRead() {
        return newlyRead;
    }

    /** Leaves out what is left of that range. */
    public void skipRange() {
        reader = null;
    }

    /** Whether the queue check was answered after the last row of the last range. */
    public boolean isCheckedAtEnd() {
        return checkedAtEnd;
    }

    /** Sets the reader of the next range, or fetches short ones; false at the end. */
    private boolean readNextRanges() {
        if (ranges.isEmpty()) {
            return false;
        }
        List<Range> group = nextGroup();
        if (group.size() == 1) {
            range = group.get(0);
            reader = new RangeReader(store, range, strict, queueCheck);
            return true;
        }
        List<RedisCall> calls = group.stream().map(this::shortCall).toList();
        List<Object> replies = store.link(group.get(0).server()).runAll(calls);
        for (int i = 0; i < replies.size(); i++) {
            ShortRange found = new ShortRange(
                    group.get(i), rowsOf(group.get(i), ReadStore.list(replies.get(i))));
            fetched.add(found);
            if (found.rows() != null) {
                newlyRead.add(found.range().queue());
            }
        }
        return true;
    }

    /**
     * Short ranges of one server that follow each other, as many as fit one round trip; a long one
     * alone.
     */
    private List<Range> nextGroup() {
        List<Range> group = new ArrayList<>(List.of(ranges.remove()));
        long rows = group.get(0).rows();
        while (group.get(0).rows() <= SHORT_RANGE_ROWS && fits(group, rows)) {
            rows += ranges.peek().rows();
            group.add(ranges.remove());
        }
        return group;
    }

    private boolean fits(List<Range> group, long rows) {
        Range next = ranges.peek();
        return next != null
                && next.rows() <= SHORT_RANGE_ROWS
                && rows + next.rows() <= MAX_SHORT_ROWS_PER_ROUND_TRIP
                && next.server() == group.get(0).server()
                && group.size() < MAX_SHORT_RANGES_PER_ROUND_TRIP;
    }

    private RedisCall shortCall(Range part) {
        List<String> keys = List.of(
                store.keys(part.queue()).metadata(), store.keys(part.queue()).messages());
        return RedisCall.script(
                "short",
                keys,
                part.first(),
                part.last(),
                SHORT_RANGE_BYTES,
                RangeReplySizer.DEEP_WINDOW_MESSAGES);
    }

    /**
     * The rows of a reply up to the first id that is not the next one; null where there is none, or
     * they are of another life.
     */
    private static ConsecutiveMessages rowsOf(Range part, List<Object> reply) {
        List<Object> pairs = reply.subList(1, reply.size());
        int count = 0;
        while (count < pairs.size() / 2
                && ConsecutiveMessages.id(pairs, count) == part.first() + count) {
            count++;
        }
        return count == 0 || !ReadStore.text(reply.get(0)).equals(part.born())
                ? null
                : new ConsecutiveMessages(part.queue(), part.first(), pairs, 0, count);
    }
}
