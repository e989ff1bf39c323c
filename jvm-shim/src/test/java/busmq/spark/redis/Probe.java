package busmq.spark.redis;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import busmq.spark.core.Script;
import busmq.spark.options.ReadOptions;
import busmq.spark.options.RedisOptions;
import busmq.spark.options.OffsetBound;
import busmq.spark.options.OffsetsOption;
import busmq.spark.options.WriteOptions;
import busmq.spark.store.ReaderRecord;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.RecordComponent;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Links and push signals on standard input and output, one JSON object a line, for
 * tests/jvm/test_links.py: servers and faults are at home in Python.
 */
public final class Probe {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Map<String, RedisLinks> links = new HashMap<>();
    private final Map<String, PushSignal> signals = new HashMap<>();
    private final Map<String, ReadOptions> options = new HashMap<>();

    private Probe() {}

    public static void main(String[] args) throws IOException {
        Probe probe = new Probe();
        BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> out = new HashMap<>();
            try {
                out.put("reply", probe.answer(JSON.readTree(line)));
            } catch (BusException error) {
                out.put("code", error.getCondition());
                out.put("error", error.getMessage());
            } catch (RuntimeException | InterruptedException | ExceptionInInitializerError error) {
                out.put("code", error.getClass().getName());
                out.put("error", String.valueOf(error));
            }
            System.out.println(JSON.writeValueAsString(out));
        }
    }

    private Object answer(JsonNode asked) throws InterruptedException {
        String name = asked.get("name").asText();
        return switch (asked.get("do").asText()) {
            case "open" -> open(name, asked.get("options"));
            case "run" -> readable(links.get(name)
                    .link(asked.get("link").asInt())
                    .runAll(calls(asked.get("calls"))));
            case "locate" -> links.get(name).locate(words(asked.get("queues")));
            case "discover" -> links.get(name).discover(() -> {});
            case "subscribe" -> subscribe(name, asked.get("queues"));
            case "await" -> signals.get(name).await(asked.get("ms").asLong() * 1_000_000);
            case "unsubscribe" -> {
                signals.remove(name).close();
                yield null;
            }
            case "close" -> {
                links.remove(name).close();
                yield null;
            }
            case "read" -> fields(ReadOptions.parse(text(asked.get("options"))));
            case "write" -> fields(WriteOptions.parse(text(asked.get("options"))));
            case "servers" -> servers(asked.get("urls").asText());
            case "digest" -> Script.load(asked.get("script").asText()).digest();
            case "record" -> ReaderRecord.encode(facts(asked.get("facts")));
            case "reader" -> ReaderRecord.describe(name, asked.get("stored").asText());
            case "error" -> BusException.of(
                            ErrorKind.valueOf(asked.get("kind").asText()),
                            details(asked.get("details")))
                    .getMessage();
            default -> throw new IllegalArgumentException("unknown: " + asked);
        };
    }

    /**
     * Host, port, TLS, user and password of each server. By reflection: the jar has another class
     * loader.
     */
    private static Object servers(String urls) {
        try {
            Class<?> address = Class.forName("busmq.spark.redis.RedisServerAddress");
            Constructor<?> make = address.getDeclaredConstructors()[0];
            make.setAccessible(true);
            Method parse = Class.forName("busmq.spark.redis.Urls")
                    .getDeclaredMethod("parse", String.class, address, int.class);
            parse.setAccessible(true);
            List<Object> found = new ArrayList<>();
            for (Object each : (List<?>) parse.invoke(
                    null, urls, make.newInstance("", 0, false, null, null, null), 6379)) {
                List<Object> parts = new ArrayList<>();
                for (RecordComponent part : address.getRecordComponents()) {
                    part.getAccessor().setAccessible(true);
                    parts.add(part.getAccessor().invoke(each));
                }
                found.add(parts.subList(0, 5));
            }
            return found;
        } catch (InvocationTargetException error) {
            throw (RuntimeException) error.getCause();
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    private Object open(String name, JsonNode given) {
        Map<String, String> map = text(given);
        map.put("subscribe", "unused");
        options.put(name, ReadOptions.parse(map));
        links.put(name, RedisLinks.fromPool(options.get(name).redis()));
        return options.get(name).toString();
    }

    private static Map<String, String> text(JsonNode given) {
        Map<String, String> map = new LinkedHashMap<>();
        given.properties()
                .forEach(entry -> map.put(entry.getKey(), entry.getValue().asText()));
        return map;
    }

    private static Map<String, Object> fields(Record options) {
        Map<String, Object> all = new HashMap<>();
        for (RecordComponent each : options.getClass().getRecordComponents()) {
            try {
                Object value = each.getAccessor().invoke(options);
                if (value instanceof RedisOptions redis) {
                    all.putAll(fields(redis));
                } else {
                    all.put(
                            each.getName(),
                            value instanceof OffsetsOption starting && starting.of("q") != null
                                    ? starting.of("q").text()
                                    : value instanceof OffsetBound start ? start.text() : value);
                }
            } catch (ReflectiveOperationException error) {
                throw new IllegalStateException(error);
            }
        }
        return all;
    }

    private static Object[] details(JsonNode given) {
        List<Object> all = new ArrayList<>();
        given.properties()
                .forEach(entry ->
                        all.addAll(List.of(entry.getKey(), entry.getValue().asText())));
        return all.toArray();
    }

    private Object subscribe(String name, JsonNode given) {
        Map<String, Integer> queues = new HashMap<>();
        given.properties()
                .forEach(entry -> queues.put(entry.getKey(), entry.getValue().asInt()));
        signals.put(name, PushListeners.subscribe(options.get(name).redis(), queues));
        return null;
    }

    private static List<RedisCall> calls(JsonNode given) {
        List<RedisCall> calls = new ArrayList<>();
        for (JsonNode each : given) {
            List<byte[]> words = words(each.get("words")).stream()
                    .map(word -> word.getBytes(StandardCharsets.UTF_8))
                    .toList();
            Script script =
                    each.hasNonNull("script") ? Script.load(each.get("script").asText()) : null;
            calls.add(new RedisCall(
                    words,
                    script,
                    each.path("keys").asInt(),
                    each.path("idempotent").asBoolean(true)));
        }
        return calls;
    }

    private static List<String> words(JsonNode given) {
        List<String> words = new ArrayList<>();
        given.forEach(word -> words.add(word.asText()));
        return words;
    }

    private static Object readable(Object reply) {
        if (reply instanceof List<?> many) {
            return many.stream()
                    .map(Probe::readable)
                    .collect(ArrayList::new, ArrayList::add, ArrayList::addAll);
        }
        return reply instanceof byte[] raw ? new String(raw, StandardCharsets.UTF_8) : reply;
    }

    private static Map<String, Object> facts(JsonNode asked) {
        Map<String, Object> found = new LinkedHashMap<>();
        asked.fields().forEachRemaining(each -> found.put(
                each.getKey(),
                each.getValue().isInt() ? each.getValue().asInt() : each.getValue().asText()));
        return found;
    }
}
