package busmq.spark.store;

import java.util.Arrays;
import java.util.List;

/**
 * The times of messages around some ids, from the clock of their queue: the column
 * {@code timestamp}, like busmq_spark/spark/read/tasks.py. Times within a second are left
 * out: the clock is right to the second, and rows that are read again shall not differ by less.
 */
public final class TimesOfIds {
    /** Nothing is known. */
    public static final TimesOfIds NONE = new TimesOfIds(new long[0], new long[0]);

    private static final long SECOND_MS = 1000;
    private static final long MS_US = 1000;

    private final long[] ms;
    private final long[] ids;

    private TimesOfIds(long[] ms, long[] ids) {
        this.ms = ms;
        this.ids = ids;
    }

    /**
     * Decode the reply of the script {@code times}. In another life of the queue than {@code born}
     * the times belong to other messages.
     */
    static TimesOfIds of(List<Object> reply, String born) {
        if (!ReadStore.text(reply.get(0)).equals(born)) {
            return NONE;
        }
        int count = (reply.size() - 1) / 2;
        long[] ms = new long[count];
        long[] ids = new long[count];
        for (int i = 0; i < count; i++) {
            ms[i] = ReadStore.number(reply.get(1 + 2 * i));
            ids[i] = ReadStore.number(reply.get(2 + 2 * i));
        }
        return new TimesOfIds(ms, ids);
    }

    /** Return these times, extended by the others of later ids. */
    TimesOfIds append(TimesOfIds later) {
        int from = 0;
        while (from < later.ids.length && later.ids[from] <= lastId()) {
            from++;
        }
        int more = later.ids.length - from;
        long[] allMs = Arrays.copyOf(ms, ms.length + more);
        long[] allIds = Arrays.copyOf(ids, ids.length + more);
        System.arraycopy(later.ms, from, allMs, ms.length, more);
        System.arraycopy(later.ids, from, allIds, ids.length, more);
        return new TimesOfIds(allMs, allIds);
    }

    /** The last id whose time is known; -1 when there is none. */
    long lastId() {
        return ids.length == 0 ? -1 : ids[ids.length - 1];
    }

    /**
     * The begin of the second in which a message was there at the latest, in microseconds since
     * 1970; null where that is not known.
     */
    public Long micros(long id) {
        int at = 0; // how many times are of smaller ids; two times may be of the same id
        for (int high = ids.length; at < high; ) {
            int middle = (at + high) >>> 1;
            if (ids[middle] < id) {
                at = middle + 1;
            } else {
                high = middle;
            }
        }
        return at == 0 || at == ids.length
                ? null
                : Long.valueOf(ms[at] / SECOND_MS * SECOND_MS * MS_US);
    }
}
