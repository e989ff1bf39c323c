package busmq.spark.core;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Comparator;
import java.util.Map;
import java.util.TreeMap;

/**
 * The offset in the checkpoint, byte for byte as the Python source writes it
 * (busmq_spark/reading/offsets.py): either engine continues where the other stopped.
 *
 * <pre>{"v": 1, "queues": {"orders": {"born": "5f…", "last": 41, "mark": "9a…"}}}</pre>
 *
 * <p>Every query begins at {@code {"v": 1}}: nothing is planned yet, so startingOffsets counts.
 */
public final class OffsetJson {
    public static final String INITIAL = "{\"v\": 1}";

    /** The order of names in the text: Python's, by code point. */
    public static final Comparator<String> BY_CODE_POINT = OffsetJson::compareCodePoints;

    private static final int OFFSET_VERSION = SharedPythonConstants.intNumber("offsetVersion");
    private static final int SHOWN_CHARS = 200;
    private static final ObjectMapper JSON = new ObjectMapper();

    private OffsetJson() {}

    public static String encode(Map<String, Position> positions) {
        return encode(positions, 0);
    }

    /**
     * {@code idle}: above 0 it makes an offset differ from the one before though nothing is new.
     */
    public static String encode(Map<String, Position> positions, int idle) {
        StringBuilder out = new StringBuilder("{\"v\": 1, \"queues\": {");
        String between = "";
        for (Map.Entry<String, Position> entry : sortByName(positions).entrySet()) {
            Position p = entry.getValue();
            appendQuoted(out.append(between), entry.getKey()).append(": {\"born\": ");
            appendQuoted(out, p.born())
                    .append(", \"last\": ")
                    .append(p.last())
                    .append(", \"mark\": ");
            appendQuoted(out, p.mark());
            if (p.start() != null) {
                out.append(", \"from\": ").append(p.start());
            }
            if (p.lost() != 0) {
                out.append(", \"lost\": ").append(p.lost());
            }
            out.append('}');
            between = ", ";
        }
        return out.append(idle > 0 ? "}, \"idle\": " + idle + "}" : "}}").toString();
    }

    /** The number of successive offsets that differ although no message is new. */
    public static int idleCount(String text) {
        return parseObject(text).path("idle").asInt(0);
    }

    /** The newest ids in the shape of an offset, for the progress of a query. */
    public static String encodeReport(Map<String, Long> lastIds, long lag, Long lagS) {
        StringBuilder out = new StringBuilder("{\"v\": 1, \"queues\": {");
        String between = "";
        for (Map.Entry<String, Long> entry : sortByName(lastIds).entrySet()) {
            appendQuoted(out.append(between), entry.getKey())
                    .append(": {\"last\": ")
                    .append(entry.getValue())
                    .append('}');
            between = ", ";
        }
        return out.append("}, \"lag\": ")
                .append(lag)
                .append(", \"lag_s\": ")
                .append(lagS)
                .append('}')
                .toString();
    }

    /**
     * The positions in an offset, by name. Throws BUSMQ_CONFIG when it is not one of ours, or needs
     * what only the Python source has.
     */
    public static Map<String, Position> decode(String text) {
        JsonNode offset = parseObject(text);
        if (!offset.has("v")) {
            throw foreignOffsetError("no version", text);
        }
        if (!offset.get("v").isInt() || offset.get("v").intValue() != OFFSET_VERSION) {
            throw BusException.configError(
                    "the checkpoint holds offsets of version " + offset.get("v").asText()
                            + ", this package reads version " + OFFSET_VERSION + "; update it");
        }
        if (offset.has("sources")) {
            throw BusException.configError(
                    "the checkpoint has positions behind federation servers, which only the engine"
                            + " in Python reads; set engine=python, or use a new checkpoint");
        }
        Map<String, Position> found = new TreeMap<>(BY_CODE_POINT);
        if (offset.size() == 1) {
            return found;
        }
        if (!(offset.get("queues") instanceof ObjectNode queues)) {
            throw foreignOffsetError("no queues", text);
        }
        queues.fields()
                .forEachRemaining(
                        entry -> found.put(entry.getKey(), position(entry.getValue(), text)));
        return found;
    }

    /**
     * The last id that was done before the batch from {@code start} to {@code end}; the batch reads
     * the ids after it. {@code start} is null for a queue that enters.
     */
    public static long lastIdBeforeBatch(Position start, Position end) {
        if (start == null || !start.born().equals(end.born())) {
            if (end.start() == null) {
                throw BusException.configError(
                        "the checkpoint ends at a queue life it never began; use a new checkpoint");
            }
            return end.start();
        }
        if (end.start() != null && (end.lost() > start.lost() || end.last() < start.last())) {
            return end.start(); // after a loss the batch goes back or forth to what is stored
        }
        return start.last();
    }

    private static Position position(JsonNode p, String text) {
        JsonNode born = p.get("born");
        JsonNode last = p.get("last");
        JsonNode mark = p.get("mark");
        if (born == null
                || mark == null
                || !born.isTextual()
                || !mark.isTextual()
                || last == null
                || last.isNull()
                || !isIdOrAbsent(last)
                || !isIdOrAbsent(p.path("lost"))
                || !isIdOrAbsent(p.path("from"))) {
            throw foreignOffsetError("a queue without born, last and mark", text);
        }
        JsonNode start = p.get("from");
        return new Position(
                born.asText(),
                last.longValue(),
                mark.asText(),
                start == null || start.isNull() ? null : start.longValue(),
                p.path("lost").asLong(0));
    }

    private static boolean isIdOrAbsent(JsonNode found) {
        boolean none = found != null && (found.isMissingNode() || found.isNull());
        return none
                || (found != null
                        && found.isIntegralNumber()
                        && found.canConvertToLong()
                        && found.longValue() >= 0
                        && found.longValue() < 1L << 53);
    }

    private static JsonNode parseObject(String text) {
        try {
            JsonNode found = JSON.readTree(text);
            if (found instanceof ObjectNode) {
                return found;
            }
        } catch (JsonProcessingException error) {
            // Not JSON at all: the same error as for JSON of another source.
        }
        throw foreignOffsetError("no JSON object", text);
    }

    private static BusException foreignOffsetError(String why, String text) {
        String shown = text.length() > SHOWN_CHARS ? text.substring(0, SHOWN_CHARS) : text;
        return BusException.configError("the checkpoint does not hold busmq offsets (" + why
                + " in " + shown + "); use a new checkpoint");
    }

    private static <T> Map<String, T> sortByName(Map<String, T> named) {
        Map<String, T> found = new TreeMap<>(BY_CODE_POINT);
        found.putAll(named);
        return found;
    }

    private static int compareCodePoints(String a, String b) {
        int least = Math.min(a.length(), b.length());
        for (int i = 0; i < least; i++) {
            char x = a.charAt(i);
            char y = b.charAt(i);
            if (x != y) {
                // Halves of a surrogate pair sort after all other characters.
                boolean pairs = Character.isSurrogate(x) != Character.isSurrogate(y);
                return pairs ? (Character.isSurrogate(x) ? 1 : -1) : x - y;
            }
        }
        return a.length() - b.length();
    }

    /** Write text like json.dumps of Python: characters beyond ASCII are escaped. */
    private static StringBuilder appendQuoted(StringBuilder out, String text) {
        out.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            switch (c) {
                case '"', '\\' -> out.append('\\').append(c);
                case '\n' -> out.append("\\n");
                case '\r' -> out.append("\\r");
                case '\t' -> out.append("\\t");
                case '\b' -> out.append("\\b");
                case '\f' -> out.append("\\f");
                default -> {
                    if (c < ' ' || c > '~') {
                        out.append(String.format("\\u%04x", (int) c));
                    } else {
                        out.append(c);
                    }
                }
            }
        }
        return out.append('"');
    }
}
