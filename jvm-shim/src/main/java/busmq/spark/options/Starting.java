package busmq.spark.options;

import busmq.spark.Contract;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.Serializable;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

/**
 * Option {@code startingOffsets}: where a fresh checkpoint begins, for all queues or one by one; ask {@link #of}.
 *
 * @param given whether {@code all} is what a user said, and not the default
 */
public record Starting(long all, boolean given, Map<String, Long> queues, Map<String, Map<String, Long>> sources) implements Serializable {
    /** In place of an id: from the oldest stored message, or after the newest. */
    public static final long EARLIEST = -1;
    /** See {@link #EARLIEST}. */
    public static final long LATEST = -2;
    static final Starting FIRST = new Starting(EARLIEST, false, Map.of(), Map.of());
    private static final long IDS = Contract.number("maxId") + 1;
    private static final ObjectMapper JSON = new ObjectMapper().enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS);
    private static final String WANTED =
            "earliest, latest, or JSON such as {\"orders\": 41, \"audit\": \"latest\"} (an id is the last one that counts as read)";

    static Starting parse(String text) {
        Long word = word(text.strip().toLowerCase(Locale.ROOT));
        if (word != null) {
            return new Starting(word, true, Map.of(), Map.of());
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
        Map<String, Long> queues = new HashMap<>();
        Map<String, Map<String, Long>> sources = new HashMap<>();
        found.properties().forEach(entry -> {
            if (entry.getValue().isObject()) {
                Map<String, Long> nested = new HashMap<>();
                entry.getValue().properties().forEach(inner -> nested.put(inner.getKey(), start(inner.getValue())));
                sources.put(entry.getKey(), nested);
            } else {
                queues.put(entry.getKey(), start(entry.getValue()));
            }
        });
        return new Starting(EARLIEST, false, queues, sources);
    }

    private static Long word(String text) {
        return text.equals("earliest") ? Long.valueOf(EARLIEST) : text.equals("latest") ? Long.valueOf(LATEST) : null;
    }

    private static long start(JsonNode value) {
        Long word = value.isTextual() ? word(value.textValue()) : null;
        if (word != null) {
            return word;
        }
        if (!value.isIntegralNumber() || !value.canConvertToLong() || value.longValue() < 0 || value.longValue() >= IDS) {
            throw new IllegalArgumentException(WANTED);
        }
        return value.longValue();
    }

    /** A start as the option has it. */
    public static String shown(long start) {
        return start == EARLIEST ? "earliest" : start == LATEST ? "latest" : String.valueOf(start);
    }

    /** An id that counts as read, {@link #EARLIEST} or {@link #LATEST}. */
    public long of(String queue) {
        Long found = sources.getOrDefault("local", Map.of()).get(queue);
        return found != null ? found : queues.getOrDefault(queue, all);
    }

    /** Whether a user has said that the queue is to be read from its first message. */
    public boolean asksForAll(String queue) {
        boolean named = queues.containsKey(queue) || sources.getOrDefault("local", Map.of()).containsKey(queue);
        return of(queue) == EARLIEST && (given || named);
    }

    /** Whether any queue has this start. */
    public boolean has(long start) {
        return all == start || queues.containsValue(start) || sources.values().stream().anyMatch(nested -> nested.containsValue(start));
    }

    Set<String> named() {
        Set<String> out = new HashSet<>(queues.keySet());
        sources.values().forEach(nested -> out.addAll(nested.keySet()));
        return out;
    }
}
