package busmq.spark.redis;

import busmq.spark.BusException;
import busmq.spark.core.Script;
import busmq.spark.options.ReadOptions;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Links and bells on standard input and output, one JSON object a line, for tests/jvm/test_links.py: servers and faults are at home in Python. */
public final class Probe {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Map<String, Links> links = new HashMap<>();
    private final Map<String, Bell> bells = new HashMap<>();
    private final Map<String, ReadOptions> options = new HashMap<>();

    private Probe() {
    }

    public static void main(String[] args) throws IOException {
        Probe probe = new Probe();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> out = new HashMap<>();
            try {
                out.put("reply", probe.answer(JSON.readTree(line)));
            } catch (BusException error) {
                out.put("code", error.code());
                out.put("error", error.getMessage());
            } catch (RuntimeException | InterruptedException error) {
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
            case "run" -> readable(links.get(name).link(asked.get("link").asInt()).runAll(calls(asked.get("calls"))));
            case "locate" -> links.get(name).locate(JSON.convertValue(asked.get("queues"), JSON.getTypeFactory().constructCollectionType(List.class, String.class)));
            case "discover" -> links.get(name).discover();
            case "bell" -> bell(name, asked.get("queues"));
            case "await" -> bells.get(name).await(asked.get("ms").asLong() * 1_000_000);
            case "hush" -> {
                bells.remove(name).close();
                yield null;
            }
            case "close" -> {
                links.remove(name).close();
                yield null;
            }
            default -> throw new IllegalArgumentException("unknown: " + asked);
        };
    }

    private Object open(String name, JsonNode given) {
        Map<String, String> map = new HashMap<>(Map.of("subscribe", "unused"));
        given.properties().forEach(entry -> map.put(entry.getKey(), entry.getValue().asText()));
        options.put(name, ReadOptions.parse(map));
        links.put(name, Links.of(options.get(name).redis()));
        return options.get(name).toString();
    }

    private Object bell(String name, JsonNode given) {
        Map<String, Integer> queues = new HashMap<>();
        given.properties().forEach(entry -> queues.put(entry.getKey(), entry.getValue().asInt()));
        bells.put(name, Doorbells.bell(options.get(name).redis(), queues));
        return null;
    }

    private static List<Call> calls(JsonNode given) {
        List<Call> calls = new ArrayList<>();
        for (JsonNode each : given) {
            List<byte[]> words = new ArrayList<>();
            each.get("words").forEach(word -> words.add(word.asText().getBytes(StandardCharsets.UTF_8)));
            Script script = each.hasNonNull("script") ? Script.load(each.get("script").asText()) : null;
            calls.add(new Call(words, script, each.path("keys").asInt(), each.path("idempotent").asBoolean(true)));
        }
        return calls;
    }

    private static Object readable(Object reply) {
        if (reply instanceof List<?> many) {
            return many.stream().map(Probe::readable).collect(ArrayList::new, ArrayList::add, ArrayList::addAll);
        }
        return reply instanceof byte[] raw ? new String(raw, StandardCharsets.UTF_8) : reply;
    }
}
