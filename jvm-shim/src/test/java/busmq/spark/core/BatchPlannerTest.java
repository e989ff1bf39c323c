package busmq.spark.core;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.params.provider.Arguments.arguments;

import busmq.spark.BusException;
import busmq.spark.options.ReadOptions;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SortedSet;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** Where a batch ends, by the tables of tests/core/test_batch_planner.py. */
class BatchPlannerTest {
    private static final Path GOLDEN = Path.of("..", "tests", "golden", "plans-v1.json");

    static Stream<Arguments> cases() throws IOException {
        return StreamSupport.stream(
                        new ObjectMapper()
                                .readTree(GOLDEN.toFile())
                                .get("cases")
                                .spliterator(),
                        false)
                .filter(found -> !found.has("python_only"))
                .map(found -> arguments(found.get("says").asText(), found));
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("cases")
    void aBatchEndsWhereTheTableSaysAndAsksWhatItSays(String says, JsonNode found) {
        Map<String, String> options = new HashMap<>(Map.of("redis.url", "redis://host"));
        found.get("options")
                .properties()
                .forEach(
                        option -> options.put(option.getKey(), option.getValue().asText()));
        World world = new World();
        BatchPlanner planner = new BatchPlanner(ReadOptions.parse(options), world);
        if (found.has("available_now")) {
            planner.prepareForAvailableNow();
        }
        for (JsonNode table : found.get("plannings")) {
            world.table = table;
            world.asked.clear();
            SortedSet<String> queues = new TreeSet<>(OffsetJson.BY_CODE_POINT);
            table.get("held").forEach(queue -> queues.add(queue.asText()));
            BatchPlanner.AcquiredQueues held = new BatchPlanner.AcquiredQueues(
                    queues, positions(table.path("entering")), table.has("fresh"));
            table.path("pushed")
                    .forEach(pushed -> assertEquals(pushed.asBoolean(), planner.hasNewIds(held)));
            Object wanted = table.has("raises")
                    ? table.get("raises").asText()
                    : positions(table.path("end"));
            assertEquals(
                    wanted,
                    outcome(() -> planner.plan(
                            positions(table.get("begin")),
                            held,
                            table.has("unlimited"),
                            table.path("now_ms").asLong())));
            assertEquals(
                    StreamSupport.stream(table.get("asks").spliterator(), false)
                            .map(JsonNode::asText)
                            .toList(),
                    world.asked);
        }
    }

    /** Its ends, or what it throws. */
    private static Object outcome(Supplier<Map<String, Position>> planning) {
        try {
            return planning.get();
        } catch (LostInTest loss) {
            return "lost";
        } catch (BusException error) {
            return error.kind().code();
        }
    }

    private static Map<String, Position> positions(JsonNode table) {
        Map<String, Position> found = new HashMap<>();
        table.properties().forEach(entry -> found.put(entry.getKey(), position(entry.getValue())));
        return found;
    }

    private static Position position(JsonNode found) {
        return new Position(
                found.get("born").asText(),
                found.get("last").asLong(),
                found.get("mark").asText(),
                found.has("from") ? found.get("from").asLong() : null,
                found.path("lost").asLong());
    }

    /** The table has no answer to a loss: it is an error. */
    private static final class LostInTest extends RuntimeException {
        private static final long serialVersionUID = 1;
    }

    /**
     * A queue is {"born": …, "oldest": 4, "newest": 9, "last_id": 9}; the fingerprint of message 7
     * is m7.
     */
    private static final class World implements PlannerIO {
        private final List<String> asked = new ArrayList<>();
        private JsonNode table;

        @Override
        public Map<String, Long> askQueueCounters(Collection<String> queues) {
            asked.add(("counters " + String.join(" ", queues)).strip());
            Map<String, Long> found = new HashMap<>();
            queues.forEach(queue -> found.put(
                    queue, table.get("queues").path(queue).path("last_id").asLong()));
            return found;
        }

        /** As lua/intact.lua looks at the queues. */
        @Override
        public Map<String, IntactQueue> askIntactQueues(
                Map<String, Position> at, Map<String, Long> upto) {
            Map<String, Long> sorted = new TreeMap<>(OffsetJson.BY_CODE_POINT);
            sorted.putAll(upto);
            asked.add("intact "
                    + sorted.entrySet().stream()
                            .map(entry -> entry.getKey() + ":"
                                    + at.get(entry.getKey()).last() + ".."
                                    + (entry.getValue() < (1L << 53) - 1 ? entry.getValue() : ""))
                            .collect(Collectors.joining(" ")));
            Map<String, IntactQueue> found = new HashMap<>();
            upto.forEach((queue, wanted) -> {
                long last = at.get(queue).last();
                QueueState now = state(table.get("queues").get(queue), last);
                long id = Math.min(wanted, now.lastId());
                if (Loss.between(at.get(queue), now) == null
                        && (id == last
                                || (id > last && now.oldest() <= id && id <= now.newest()))) {
                    found.put(queue, new IntactQueue(now.lastId(), id > last ? "m" + id : ""));
                }
            });
            return found;
        }

        @Override
        public Map<String, QueueState> askQueueStates(Map<String, Long> ids) {
            asked.add("states " + text(ids));
            Map<String, QueueState> found = new TreeMap<>(OffsetJson.BY_CODE_POINT);
            ids.forEach(
                    (queue, id) -> found.put(queue, state(table.get("queues").get(queue), id)));
            return found;
        }

        @Override
        public Map<String, TimeLookupResult> askIdsAtTimes(Map<String, Long> wanted) {
            asked.add("times " + text(wanted));
            Map<String, TimeLookupResult> found = new HashMap<>();
            wanted.keySet()
                    .forEach(queue -> found.put(
                            queue,
                            new TimeLookupResult(
                                    table.get("times").get(queue).asLong(), 0, 0, 0, 0)));
            return found;
        }

        @Override
        public Map<String, String> askFingerprints(Map<String, Long> ids) {
            asked.add("marks " + text(ids));
            Map<String, String> found = new HashMap<>();
            ids.forEach((queue, id) -> found.put(queue, "m" + id));
            return found;
        }

        @Override
        public long[] askLastIdWithinBytes(String queue, long first, long last, long budget) {
            asked.add("bytes " + queue + " " + first + ".." + last + " " + budget);
            long size = table.get("sizes").get(queue).asLong();
            long fitting = Math.min(last - first + 1, budget / size);
            return new long[] {first - 1 + fitting, fitting * size};
        }

        @Override
        public Position handleLoss(String queue, Position at, Loss loss) {
            asked.add("lost " + queue + " " + loss.kind() + " " + loss.ids());
            if (!table.path("after_loss").has(queue)) {
                throw new LostInTest();
            }
            JsonNode found = table.get("after_loss").get(queue);
            return found.isNull() ? null : position(found);
        }

        @Override
        public void dropExpiredQueue(String queue) {
            asked.add("gone " + queue);
        }

        private static String text(Map<String, Long> ids) {
            Map<String, Long> sorted = new TreeMap<>(OffsetJson.BY_CODE_POINT);
            sorted.putAll(ids);
            return sorted.entrySet().stream()
                    .map(entry -> entry.getKey() + ":" + entry.getValue())
                    .collect(Collectors.joining(" "));
        }

        private static QueueState state(JsonNode found, long asked) {
            long oldest = found.path("oldest").asLong();
            long newest = found.path("newest").asLong();
            String mark = asked > 0 && oldest <= asked && asked <= newest ? "m" + asked : "";
            return new QueueState(
                    found.path("ttl_s").asLong(60),
                    found.path("born").asText(),
                    0,
                    found.path("last_id").asLong(newest),
                    oldest,
                    newest,
                    newest > 0 ? newest - oldest + 1 : 0,
                    found.path("mark").asText(mark),
                    newest > 0 ? "m" + newest : "",
                    found.path("done").asLong());
        }
    }
}
