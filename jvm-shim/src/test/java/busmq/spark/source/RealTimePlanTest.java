package busmq.spark.source;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import busmq.spark.core.Position;
import busmq.spark.options.ReadOptions;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.junit.jupiter.api.Test;

class RealTimePlanTest {
    @Test
    void theExecutorsThatHaveFollowedAQueueAreKnown() {
        RealTimePlan plan = new RealTimePlan(ReadOptions.parse(Map.of("redis.url", "redis://h", "subscribe", "a,b")));
        plan.ends(new PartitionOffset[] {end("1", "a"), end("2", "b")});
        plan.ends(new PartitionOffset[] {end("2", "a", "b")});
        assertEquals(List.of(Set.of("1", "2"), Set.of("2"), Set.of()), List.of(plan.heardBy("a"), plan.heardBy("b"), plan.heardBy("c")));
    }

    @Test
    void allReadersTogetherAskFifteenTimesASecondAtMostAndNoneMoreOftenThanTheOptionSays() {
        for (long commands = 1; commands < 100; commands++) {
            assertTrue(commands * 1000.0 / RealTimePlan.pollMs(1, commands) <= 15);
        }
        assertEquals(60_000, RealTimePlan.pollMs(60_000, 7));
    }

    private static RealTimeOffset end(String executor, String... queues) {
        Map<String, Position> ends = new HashMap<>();
        List.of(queues).forEach(queue -> ends.put(queue, new Position("life", 1, "", null, 0)));
        return new RealTimeOffset(ends, executor, true);
    }
}
