package busmq.spark.redis;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import busmq.spark.BusException;
import busmq.spark.options.ReadOptions;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(30)
class LinksTest {
    @AfterEach
    void resetClock() {
        RedisLinks.clock = System::nanoTime;
    }

    private static void use(EchoServer server) {
        try (RedisLinks links = RedisLinks.fromPool(
                ReadOptions.parse(Map.of("redis.url", server.url(), "subscribe", "q"))
                        .redis())) {
            links.link(0).run(RedisCall.command("ECHO", "opens it"));
        }
    }

    @Test
    void linksThatWereIdleTooLongAreClosedWhenOthersAreReturned() throws Exception {
        try (EchoServer left = new EchoServer();
                EchoServer used = new EchoServer()) {
            use(left);
            RedisLinks.clock = () -> System.nanoTime() + TimeUnit.MINUTES.toNanos(2);
            use(used);
            assertEquals("one", left.ended.poll(10, TimeUnit.SECONDS));
            use(used);
            assertNull(used.ended.poll());
        }
    }

    @Test
    void linksThatWereReturnedCannotBeUsedUntilTheyAreTakenAgain() throws Exception {
        try (EchoServer server = new EchoServer()) {
            RedisLinks links = RedisLinks.fromPool(
                    ReadOptions.parse(Map.of("redis.url", server.url(), "subscribe", "q"))
                            .redis());
            links.close();
            assertThrows(BusException.class, () -> links.link(0));
            assertThrows(BusException.class, links::links);
            use(server);
        }
    }
}
