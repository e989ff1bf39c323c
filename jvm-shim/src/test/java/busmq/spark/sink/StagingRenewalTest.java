package busmq.spark.sink;

import static org.junit.jupiter.api.Assertions.assertTrue;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class StagingRenewalTest {
    @Test
    void aRenewalThatFailedIsTriedAgainSoonAndNotWhenTheNextIsDue() throws InterruptedException {
        CountDownLatch tries = new CountDownLatch(5);
        long began = System.nanoTime();
        try (StagingRenewal renewal = new StagingRenewal(() -> {
            tries.countDown();
            throw BusException.of(ErrorKind.LINK_LOST, "url", "redis://host", "reason", "down");
        }, "s", 2_000, 10)) {
            renewal.of(1);
            assertTrue(tries.await(30, TimeUnit.SECONDS));
        }
        long tookMs = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began);
        assertTrue(tookMs >= 2_000 && tookMs < 8_000, () -> "five tries within " + tookMs + " ms");
    }
}
