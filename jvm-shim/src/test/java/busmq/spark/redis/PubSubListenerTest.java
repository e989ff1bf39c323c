package busmq.spark.redis;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

class PubSubListenerTest {
    @Test
    void anUnexpectedErrorDoesNotEndTheListener() throws Exception {
        try (EchoServer server = new EchoServer()) {
            AtomicInteger asked = new AtomicInteger();
            RedisEndpoint strange = new RedisEndpoint() {
                @Override
                public String maskedAddress() {
                    return "redis://strange";
                }

                @Override
                public List<String> secrets() {
                    return List.of();
                }

                @Override
                public boolean mayMove() {
                    return false;
                }

                @Override
                public RedisServerAddress resolve() {
                    if (asked.incrementAndGet() == 1) {
                        throw new IllegalStateException("as tests have it");
                    }
                    return server.endpoint();
                }
            };
            PushSignal signal = new PushSignal(gone -> {});
            new RedisPushListenerThread(strange).addSignal("channel", signal);
            assertTrue(signal.await(20_000_000_000L), "its subscription is confirmed");
        }
    }
}
