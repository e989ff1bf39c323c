package busmq.spark.store;

import busmq.spark.PyText;
import busmq.spark.SharedPythonConstants;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

/**
 * The record that a reader leaves beside its lease, so that others can name it. The Python package
 * (reading/reader_record.py) reads and writes the same JSON.
 */
public final class ReaderRecord {
    private static final int RECORD_BYTES = SharedPythonConstants.intNumber("readerRecordBytes");
    private static final int MAX_TEXT = SharedPythonConstants.intNumber("readerMaxText");
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Pattern CONTROL = Pattern.compile(
            "[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069]+");
    private static final List<Map.Entry<Pattern, String>> SECRETS = List.of(
            Map.entry(Pattern.compile("(?<=://)[^\\s/@]*(?:/[^\\s/@]*)?@"), "***@"),
            Map.entry(
                    Pattern.compile(
                            "(?i)\\b(\\w*(?:passw(?:or)?d|secret|token|api_?key))"
                                    + "(['\"]?\\s*(?:=|['\"]\\s*:)\\s*)(['\"]?)[^\\s'\"&,;]+"),
                    "$1$2$3***"),
            Map.entry(Pattern.compile("(?i)\\b(bearer|basic)\\s+[\\w.~+/=-]{8,}"), "$1 ***"),
            Map.entry(Pattern.compile("(\\w://[^\\s?]*)\\?[^\\s'\"]*"), "$1?***"));

    private ReaderRecord() {}

    /**
     * The record that a reader sends with the renewal of its leases: a field of the hash
     * {@code readers}, its record, and by queue the last id that it has finished.
     */
    public record Announcement(String field, String record, Map<String, Long> own) {}

    /** The field of the holder of a lease; the lease without a name has an empty subscription. */
    public static String leaseField(String subscription) {
        return "l:" + subscription;
    }

    /** The part of a lease's token that no other token has. */
    public static String idOf(String token) {
        return token.replaceFirst("(?s)\\|.*", "");
    }

    /**
     * Return the JSON of the facts that are known (neither empty nor null). Credentials in URLs are
     * replaced by {@code ***}; while the JSON is too long, the longest text loses its second half.
     */
    public static String encode(Map<String, Object> facts) {
        Map<String, Object> said = new LinkedHashMap<>();
        facts.forEach((name, value) -> {
            Object shown = value instanceof String text ? withoutSecrets(text) : value;
            if (shown != null && !shown.equals("")) {
                said.put(name, shown);
            }
        });
        try {
            String json = JSON.writeValueAsString(said);
            // Jackson's bytes would have escapes for characters beyond 16 bits.
            while (json.getBytes(StandardCharsets.UTF_8).length > RECORD_BYTES) {
                String longest = null;
                for (Map.Entry<String, Object> each : said.entrySet()) {
                    if (each.getValue() instanceof String text
                            && (longest == null
                                    || length(text) > length((String) said.get(longest)))) {
                        longest = each.getKey();
                    }
                }
                String text = (String) said.get(longest);
                said.put(longest, head(text, length(text) / 2) + "…");
                json = JSON.writeValueAsString(said);
            }
            return json;
        } catch (JsonProcessingException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Return a text on one line, bounded, without credentials and the queries of URLs. */
    static String withoutSecrets(String text) {
        String shown = CONTROL.matcher(head(text, 4 * MAX_TEXT)).replaceAll(" ");
        for (Map.Entry<Pattern, String> each : SECRETS) {
            shown = each.getKey().matcher(shown).replaceAll(each.getValue());
        }
        return head(shown, MAX_TEXT);
    }

    /**
     * Return a description of a lease holder for people, by the stored field where it is the
     * holder's, else by the token.
     */
    public static String describe(String token, String stored) {
        String where = LeaseHolderToken.describeHolder(token);
        JsonNode record = parse(stored);
        if (record == null || !record.path("id").asText().equals(idOf(token))) {
            return where;
        }
        String host = record.path("host").asText();
        if (!host.isEmpty() && !LeaseHolderToken.isOnThisMachine(token)) {
            where = "process " + record.path("pid").asText("unknown") + " on " + host;
        }
        String name = record.path("name").asText();
        String app = record.path("app").asText();
        String ui = record.path("ui").asText();
        return record.path("kind").asText()
                + (name.isEmpty() ? "" : " " + PyText.repr(name))
                + ", "
                + where
                + (app.isEmpty() ? "" : ", application " + app)
                + (ui.isEmpty() ? "" : ", " + ui);
    }

    /** The record of a stored field; null where there is none that a reader has written. */
    private static JsonNode parse(String stored) {
        int blank = stored.indexOf(' ');
        try {
            JsonNode found = blank < 0 ? null : JSON.readTree(stored.substring(blank + 1));
            return found != null && found.path("kind").isTextual() ? found : null;
        } catch (JsonProcessingException error) {
            return null;
        }
    }

    private static int length(String text) {
        return text.codePointCount(0, text.length());
    }

    private static String head(String text, int most) {
        return length(text) <= most ? text : text.substring(0, text.offsetByCodePoints(0, most));
    }
}
