package busmq.spark.store;

import busmq.spark.Contract;
import busmq.spark.core.QueueKeys;
import busmq.spark.redis.Call;
import java.util.List;

/** Which messages to ask for in one reply: more while it stays small, and never so many that it may come to more than 15 MB (core/ranges.py). */
final class ReplyWindows {
    /** With so many messages before a window Redis takes as long to get there as to read the window. */
    static final long DEEP = Contract.number("deep");
    static final int GROWTH = Contract.intNumber("growth");

    private static final int FIRST_ROWS = Contract.intNumber("firstRows");
    private static final int MOST_ROWS = Contract.intNumber("mostRows");
    private static final int FEW_ROWS = Contract.intNumber("fewRows");
    private static final int COUNTED_ROWS = Contract.intNumber("countedRows");
    private static final int WIDE = Contract.intNumber("wide");
    private static final int WIDE_DEEP = Contract.intNumber("wideDeep");
    private static final long TARGET_BYTES = Contract.number("targetBytes");

    private final QueueKeys keys;
    private ValueSizes sizes;
    private long rows;

    /** {@code valueBytes}: about how long values are; 0 when that is not known. */
    ReplyWindows(QueueKeys keys, long valueBytes, ValueSizes sizes, boolean deep) {
        this.keys = keys;
        this.sizes = sizes;
        rows = Math.max(1, Math.min(deep ? GROWTH * FIRST_ROWS : FIRST_ROWS, TARGET_BYTES / Math.max(1, valueBytes)));
    }

    long rows() {
        return rows;
    }

    /** Of {@code wanted} messages that may not be there yet those that writers have noted, while they note all. */
    long limitToNoted(long first, long wanted) {
        return sizes.upto() < first - 1 ? wanted : Math.min(wanted, Math.max(ValueSizes.UNKNOWN_ROWS, sizes.upto() - first + 1));
    }

    /** So many messages from {@code first} on, at {@code index} of the list; fewer where they might be too large. */
    Call windowCall(long first, long index, long wanted) {
        long certain = Math.min(wanted, sizes.rows(first));
        if (certain < Math.min(wanted, FEW_ROWS)) {
            return Call.script("window", List.of(keys.messages()), index, Math.min(wanted, COUNTED_ROWS), TARGET_BYTES, index < DEEP ? WIDE : WIDE_DEEP);
        }
        return Call.command("LRANGE", keys.messages(), 2 * index, 2 * (index + certain) - 1);
    }

    /** What writers have noted meanwhile. */
    void setSizes(ValueSizes now) {
        sizes = now;
    }

    /** A reply came; {@code full}: with as many messages as had been asked for. */
    void adaptTo(List<Object> pairs, boolean full) {
        long messages = pairs.size() / 2;
        long bytes = 1;
        for (int i = 1; i < pairs.size(); i += 2) {
            bytes += ((byte[]) pairs.get(i)).length;
        }
        rows = Math.max(1, Math.min(Math.min(TARGET_BYTES * messages / bytes, full ? GROWTH * messages : rows), MOST_ROWS));
    }
}
