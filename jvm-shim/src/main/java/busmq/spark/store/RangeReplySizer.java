package busmq.spark.store;

import busmq.spark.SharedPythonConstants;
import busmq.spark.core.QueueKeys;
import busmq.spark.redis.RedisCall;
import java.util.List;

/**
 * Which messages to ask for in one reply: more while it stays small, and never so many that it may
 * come to more than 15 MB (reading/range_reader.py).
 */
final class RangeReplySizer {
    /**
     * With so many messages before a window Redis takes as long to get there as to read the window.
     */
    static final long DEEP_WINDOW_MESSAGES = SharedPythonConstants.number("deepWindowMessages");

    static final int REPLY_GROWTH_FACTOR = SharedPythonConstants.intNumber("replyGrowthFactor");

    private static final int FIRST_REPLY_ROWS = SharedPythonConstants.intNumber("firstReplyRows");
    private static final int MAX_REPLY_ROWS = SharedPythonConstants.intNumber("maxReplyRows");
    private static final int ROWS_NOT_WORTH_COUNTING =
            SharedPythonConstants.intNumber("rowsNotWorthCounting");
    private static final int MAX_COUNTED_ROWS = SharedPythonConstants.intNumber("maxCountedRows");
    private static final int MESSAGES_PER_LRANGE =
            SharedPythonConstants.intNumber("messagesPerLrange");
    private static final int MESSAGES_PER_DEEP_LRANGE =
            SharedPythonConstants.intNumber("messagesPerDeepLrange");
    private static final long TARGET_REPLY_BYTES = SharedPythonConstants.number("targetReplyBytes");

    private final QueueKeys keys;
    private ValueSizeStats sizes;
    private long rows;

    /** {@code valueBytes}: about how long values are; 0 when that is not known. */
    RangeReplySizer(QueueKeys keys, long valueBytes, ValueSizeStats sizes, boolean deep) {
        this.keys = keys;
        this.sizes = sizes;
        rows = Math.max(
                1,
                Math.min(
                        deep ? REPLY_GROWTH_FACTOR * FIRST_REPLY_ROWS : FIRST_REPLY_ROWS,
                        TARGET_REPLY_BYTES / Math.max(1, valueBytes)));
    }

    long rows() {
        return rows;
    }

    /**
     * Of {@code wanted} messages that may not be there yet those that writers have noted, while
     * they note all.
     */
    long limitToNoted(long first, long wanted) {
        return sizes.upto() < first - 1
                ? wanted
                : Math.min(
                        wanted,
                        Math.max(ValueSizeStats.ROWS_OF_UNKNOWN_SIZE, sizes.upto() - first + 1));
    }

    /**
     * So many messages from {@code first} on, at {@code index} of the list; fewer where they might
     * be too large.
     */
    RedisCall windowCall(long first, long index, long wanted) {
        long certain = Math.min(wanted, sizes.rows(first));
        if (certain < Math.min(wanted, ROWS_NOT_WORTH_COUNTING)) {
            return RedisCall.script(
                    "window",
                    List.of(keys.messages()),
                    index,
                    Math.min(wanted, MAX_COUNTED_ROWS),
                    TARGET_REPLY_BYTES,
                    index < DEEP_WINDOW_MESSAGES ? MESSAGES_PER_LRANGE : MESSAGES_PER_DEEP_LRANGE);
        }
        return RedisCall.command("LRANGE", keys.messages(), 2 * index, 2 * (index + certain) - 1);
    }

    /** Take the sizes that writers have noted meanwhile. */
    void setSizes(ValueSizeStats now) {
        sizes = now;
    }

    /** A reply came; {@code full}: with as many messages as had been asked for. */
    void adaptTo(List<Object> pairs, boolean full) {
        long messages = pairs.size() / 2;
        long bytes = 1;
        for (int i = 1; i < pairs.size(); i += 2) {
            bytes += ((byte[]) pairs.get(i)).length;
        }
        rows = Math.max(
                1,
                Math.min(
                        Math.min(
                                TARGET_REPLY_BYTES * messages / bytes,
                                full ? REPLY_GROWTH_FACTOR * messages : rows),
                        MAX_REPLY_ROWS));
    }
}
