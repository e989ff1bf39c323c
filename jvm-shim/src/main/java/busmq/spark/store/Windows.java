package busmq.spark.store;

import java.util.List;

/** How many messages to ask for in one reply: more while it stays small, so that no reply holds Redis or memory for long (core/ranges.py). */
final class Windows {
    /** Messages before a window from which on Redis' walk there costs as much as the window. */
    static final long DEEP = 1_000_000;

    private static final int FIRST_ROWS = 1000;
    private static final int MOST_ROWS = 30_000;
    static final int GROWTH = 4;
    private static final long TARGET_BYTES = 4 * 1024 * 1024;

    private long rows;

    /** {@code valueBytes}: about how long values are; 0 when nobody knows. */
    Windows(long valueBytes, boolean deep) {
        rows = Math.max(1, Math.min(deep ? GROWTH * FIRST_ROWS : FIRST_ROWS, TARGET_BYTES / Math.max(1, valueBytes)));
    }

    long rows() {
        return rows;
    }

    /** A reply came; {@code full}: with as many messages as had been asked for. */
    void took(List<Object> pairs, boolean full) {
        long messages = pairs.size() / 2;
        long bytes = 1;
        for (int i = 1; i < pairs.size(); i += 2) {
            bytes += ((byte[]) pairs.get(i)).length;
        }
        rows = Math.max(1, Math.min(Math.min(TARGET_BYTES * messages / bytes, full ? GROWTH * messages : rows), MOST_ROWS));
    }
}
