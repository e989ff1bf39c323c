package busmq.spark.core;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import busmq.spark.PyText;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;

/**
 * The answer of a queue's clock to a time, {@code asked}, as in
 * busmq_spark/reading/times_of_ids.py.
 * Times are milliseconds since 1970; 0 where they are not known.
 *
 * @param id the last id that existed before the second of that time; -1 where that is not known
 * @param first the first time that is known
 * @param last the last one
 */
public record TimeLookupResult(long id, long first, long last, long now, long asked) {
    private static final DateTimeFormatter ISO =
            DateTimeFormatter.ofPattern("yyyy-MM-dd'T'HH:mm:ss.SSSxxx").withZone(ZoneOffset.UTC);

    /**
     * {@code id}, where it is known. Throws BUSMQ_TIME_UNKNOWN, and BUSMQ_CONFIG for a time that is
     * still to come.
     */
    public long lastId(String queue) {
        if (now > 0 && asked > now) {
            throw BusException.configError("the time " + formatTime(asked)
                    + " is still to come: the clock of the server of queue " + PyText.repr(queue)
                    + " says "
                    + formatTime(now));
        }
        if (id < 0) {
            String known = first > 0
                    ? "are known " + formatTime(first) + " to " + formatTime(last)
                    : "none is known";
            throw BusException.of(
                    ErrorKind.TIME_UNKNOWN,
                    "queue",
                    queue,
                    "asked",
                    formatTime(asked),
                    "known",
                    known);
        }
        return id;
    }

    private static String formatTime(long ms) {
        return ISO.format(Instant.ofEpochMilli(ms));
    }
}
