package busmq.spark.source;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
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
        RealTimePlan plan = new RealTimePlan(
                ReadOptions.parse(Map.of("redis.url", "redis://h", "subscribe", "a,b")));
        plan.endPositions(new PartitionOffset[] {end("1", "a"), end("2", "b")});
        plan.endPositions(new PartitionOffset[] {end("2", "a", "b")});
        assertEquals(
                List.of(Set.of("1", "2"), Set.of("2"), Set.of()),
                List.of(plan.executorsOf("a"), plan.executorsOf("b"), plan.executorsOf("c")));
    }

    @Test
    void allReadersTogetherAskFifteenTimesASecondAtMostAndNoneMoreOftenThanTheOptionSays() {
        for (long commands = 1; commands < 100; commands++) {
            assertTrue(commands * 1000.0 / RealTimePlan.pollMs(1, commands) <= 15);
        }
        assertEquals(60_000, RealTimePlan.pollMs(60_000, 7));
    }

    @Test
    void theGapIsTheLongestTimeThatAQueueHadNoReader() {
        RealTimePlan plan = new RealTimePlan(
                ReadOptions.parse(Map.of("redis.url", "redis://h", "subscribe", "a,b")));
        plan.endPositions(new PartitionOffset[] {end(100, 200, "a"), end(110, 210, "b")});
        assertNull(plan.gapMs()); // no batch before
        plan.endPositions(new PartitionOffset[] {end(230, 300, "a"), end(250, 310, "b")});
        assertEquals(40, plan.gapMs());
        plan.endPositions(new PartitionOffset[] {end(330, 400, "a"), end(0, 410, "b")});
        // The reader of b found no slot, which is no gap between two readers yet.
        assertEquals(30, plan.gapMs());
        plan.endPositions(new PartitionOffset[] {end(401, 500, "a"), end(450, 510, "b")});
        assertEquals(140, plan.gapMs());
        plan.endPositions(new PartitionOffset[] {end(499, 600, "a")});
        assertEquals(0, plan.gapMs()); // on another machine, whose clock is behind
    }

    private static RealTimeOffset end(String executor, String... queues) {
        return end(executor, 1, 2, queues);
    }

    private static RealTimeOffset end(long fromMs, long untilMs, String... queues) {
        return end("1", fromMs, untilMs, queues);
    }

    private static RealTimeOffset end(
            String executor, long fromMs, long untilMs, String... queues) {
        Map<String, Position> ends = new HashMap<>();
        List.of(queues).forEach(queue -> ends.put(queue, new Position("life", 1, "", null, 0)));
        return new RealTimeOffset(ends, executor, fromMs, untilMs);
    }
}
