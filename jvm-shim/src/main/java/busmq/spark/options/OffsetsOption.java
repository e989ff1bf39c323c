package busmq.spark.options;

import busmq.spark.SharedPythonConstants;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.Serializable;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;

/**
 * Option {@code startingOffsets} or {@code endingOffsets}: where reading begins or ends, for all
 * queues or one by one; ask {@link #of}.
 *
 * @param all null where the option says nothing about a queue
 */
public record OffsetsOption(
        OffsetBound all,
        Map<String, OffsetBound> queues,
        Map<String, Map<String, OffsetBound>> sources)
        implements Serializable {
    static final OffsetsOption NOT_GIVEN = new OffsetsOption(null, Map.of(), Map.of());
    private static final long ID_LIMIT = SharedPythonConstants.number("maxId") + 1;
    private static final ObjectMapper JSON = new ObjectMapper()
            .enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS)
            .enable(JsonParser.Feature.STRICT_DUPLICATE_DETECTION);
    private static final String WANTED =
            "earliest, latest, -10m, -2h, \"-1000 messages\", a time such as 2026-05-01T12:00:00Z,"
                + " or JSON such as {\"orders\": 41, \"audit\": \"latest\", \"clicks\": \"-10m\"}"
                + " (an id is the last one that counts as read)";
    private static final String WANTED_END =
            "latest, -10m, \"-1000 messages\", a time such as 2026-05-01T12:00:00Z, or JSON such"
                    + " as {\"orders\": 41, \"clicks\": \"-10m\"} (an id is the last one that is"
                    + " read)";

    static OffsetsOption parse(String text) {
        OffsetBound word = OffsetBound.parseWordOrTime(text);
        if (word != null) {
            return new OffsetsOption(word, Map.of(), Map.of());
        }
        JsonNode found;
        try {
            found = JSON.readTree(text);
        } catch (JsonProcessingException error) {
            throw new IllegalArgumentException(WANTED);
        }
        if (!found.isObject()) {
            throw new IllegalArgumentException(WANTED);
        }
        Map<String, OffsetBound> queues = new HashMap<>();
        Map<String, Map<String, OffsetBound>> sources = new HashMap<>();
        found.properties().forEach(entry -> {
            if (entry.getValue().isObject()) {
                Map<String, OffsetBound> nested = new HashMap<>();
                entry.getValue()
                        .properties()
                        .forEach(inner -> nested.put(inner.getKey(), parseStart(inner.getValue())));
                sources.put(entry.getKey(), nested);
            } else {
                queues.put(entry.getKey(), parseStart(entry.getValue()));
            }
        });
        return new OffsetsOption(null, queues, sources);
    }

    /** Parser of {@code endingOffsets}. */
    static OffsetsOption parseEnding(String text) {
        OffsetsOption found;
        try {
            found = parse(text);
        } catch (IllegalArgumentException error) {
            throw new IllegalArgumentException(WANTED_END);
        }
        if (found.hasKind(OffsetBound.Kind.EARLIEST)) {
            throw new IllegalArgumentException(WANTED_END);
        }
        return found;
    }

    private static OffsetBound parseStart(JsonNode value) {
        OffsetBound word =
                value.isTextual() ? OffsetBound.parseWordOrTime(value.textValue()) : null;
        if (word != null) {
            return word;
        }
        if (!value.isIntegralNumber()
                || !value.canConvertToLong()
                || value.longValue() < 0
                || value.longValue() >= ID_LIMIT) {
            throw new IllegalArgumentException(WANTED);
        }
        return OffsetBound.afterId(value.longValue());
    }

    /** Return the bound that the user has given for a queue; null for none. */
    public OffsetBound of(String queue) {
        OffsetBound found = sources.getOrDefault("local", Map.of()).get(queue);
        return found != null ? found : queues.getOrDefault(queue, all);
    }

    /** Whether any queue has a start of this kind. */
    public boolean hasKind(OffsetBound.Kind kind) {
        return Stream.of(
                        Stream.ofNullable(all),
                        queues.values().stream(),
                        sources.values().stream().flatMap(nested -> nested.values().stream()))
                .flatMap(each -> each)
                .anyMatch(start -> start.kind() == kind);
    }

    boolean isGiven() {
        return all != null || !queues.isEmpty() || !sources.isEmpty();
    }

    Set<String> queueNames() {
        Set<String> out = new HashSet<>(queues.keySet());
        sources.values().forEach(nested -> out.addAll(nested.keySet()));
        return out;
    }
}
