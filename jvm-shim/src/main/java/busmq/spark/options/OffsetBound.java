package busmq.spark.options;

import java.io.Serializable;
import java.time.DateTimeException;
import java.time.OffsetDateTime;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The start or the end of reading in a queue: busmq_spark/starting_offsets.py.
 *
 * @param value the last id that counts as read; milliseconds since 1970, below 0 so long before
 *     now; or how many messages
 * @param text as the user gave it
 */
public record OffsetBound(Kind kind, long value, String text) implements Serializable {
    /** The form of a start. */
    public enum Kind {
        EARLIEST,
        LATEST,
        ID,
        TIME,
        NEWEST
    }

    /** From the oldest stored message. */
    public static final OffsetBound EARLIEST = new OffsetBound(Kind.EARLIEST, 0, "earliest");
    /** After the newest message. */
    public static final OffsetBound LATEST = new OffsetBound(Kind.LATEST, 0, "latest");

    private static final Pattern RELATIVE =
            Pattern.compile("\\s*-\\s*([0-9]{1,12})\\s*(ms|s|m|h|d|messages?)\\s*");
    private static final Pattern ISO = Pattern.compile("([0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T"
            + " ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\\.[0-9]{1,6})?)?)?)(Z|[+-][0-9]{2}:[0-9]{2})?");
    private static final Map<String, Long> UNITS_MS =
            Map.of("ms", 1L, "s", 1000L, "m", 60_000L, "h", 3_600_000L, "d", 86_400_000L);
    private static final long LATEST_MS = 253_402_300_799_999L;
    private static final String WANTED_TIME =
            "a time such as 2026-05-01T12:00:00Z or 2026-05-01T12:00:00+02:00, or milliseconds"
                    + " since 1970";

    /** After the message with this id. */
    public static OffsetBound afterId(long last) {
        return new OffsetBound(Kind.ID, last, String.valueOf(last));
    }

    /**
     * A word, {@code -10m}, {@code -1000 messages}, or a time in ISO 8601 with its offset; null for
     * any other text.
     */
    static OffsetBound parseWordOrTime(String text) {
        String low = text.strip().toLowerCase(Locale.ROOT);
        Matcher found = RELATIVE.matcher(low);
        if (low.equals("earliest") || low.equals("latest")) {
            return low.equals("latest") ? LATEST : EARLIEST;
        }
        if (!found.matches()) {
            return iso(text);
        }
        if (Long.parseLong(found.group(1)) < 1) {
            return null;
        }
        long count = Long.parseLong(found.group(1));
        Long unit = UNITS_MS.get(found.group(2));
        return unit == null
                ? new OffsetBound(Kind.NEWEST, count, "-" + count + " messages")
                : new OffsetBound(
                        Kind.TIME, -Math.min(count, LATEST_MS / unit) * unit, text.strip());
    }

    private static OffsetBound iso(String text) {
        Matcher found = ISO.matcher(text.strip());
        try {
            return found.matches() && found.group(2) != null ? timestamp(text) : null;
        } catch (IllegalArgumentException error) {
            return null;
        }
    }

    /** Parser of a time: ISO 8601 with its offset from UTC, or milliseconds since 1970. */
    static OffsetBound timestamp(String text) {
        String stripped = text.strip();
        long ms;
        if (stripped.matches("[0-9]{1,15}")) {
            ms = Long.parseLong(stripped);
        } else {
            Matcher found = ISO.matcher(stripped);
            if (!found.matches()) {
                throw new IllegalArgumentException(WANTED_TIME);
            }
            if (found.group(2) == null) {
                throw new IllegalArgumentException(
                        WANTED_TIME + "; without Z or an offset from UTC a time is none");
            }
            try {
                ms = OffsetDateTime.parse(stripped.replace(' ', 'T'))
                        .toInstant()
                        .toEpochMilli();
            } catch (DateTimeException error) {
                throw new IllegalArgumentException(WANTED_TIME);
            }
        }
        if (ms < 0 || ms > LATEST_MS) {
            throw new IllegalArgumentException(WANTED_TIME);
        }
        return new OffsetBound(Kind.TIME, ms, stripped);
    }
}
