package busmq.spark.store;

import busmq.spark.SharedPythonConstants;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Sizes that writers have noted for ids {@code since..upto} (include/sizes.lua): the bytes of the
 * longest value. Values over 64 KB are giants and count apart; {@code giant} is the newest of them.
 */
record ValueSizeStats(long since, long upto, long longest, long giant, long giants) {
    private static final Pattern NOTED =
            Pattern.compile("(\\d{1,16}):(\\d{1,16}):(\\d{1,16}):(\\d{1,16}):(\\d{1,16})");
    private static final ValueSizeStats NOTHING = new ValueSizeStats(1, 0, 0, 0, 0);
    private static final long MAX_REPLY_BYTES = SharedPythonConstants.number("maxReplyBytes");
    /** So many of which nothing is noted: each is taken to be of 1 MB at most. */
    static final long ROWS_OF_UNKNOWN_SIZE = SharedPythonConstants.number("rowsOfUnknownSize");

    /** Parse the field; empty where it is missing or no writer of ours wrote it. */
    static ValueSizeStats parse(Object noted) {
        Matcher found = NOTED.matcher(noted == null ? "" : ReadStore.text(noted));
        return found.matches()
                ? new ValueSizeStats(
                        number(found, 1),
                        number(found, 2),
                        number(found, 3),
                        number(found, 4),
                        number(found, 5))
                : NOTHING;
    }

    /**
     * Return the number of messages from {@code first} on that certainly fit one reply; at least 1.
     */
    long rows(long first) {
        long most = longestOf(first, first);
        return most < 0
                ? ROWS_OF_UNKNOWN_SIZE
                : Math.max(
                        1,
                        Math.min(
                                MAX_REPLY_BYTES / Math.max(1, most),
                                Math.max(ROWS_OF_UNKNOWN_SIZE, upto - first + 1)));
    }

    /** No value of {@code first..last} is longer; -1 where that is not known. */
    long longestOf(long first, long last) {
        if (first < since || last > upto) {
            return -1;
        }
        return first <= giant ? Math.max(longest, giants) : longest;
    }

    private static long number(Matcher found, int group) {
        return Long.parseLong(found.group(group));
    }
}
