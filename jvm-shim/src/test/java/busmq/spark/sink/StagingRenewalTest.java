package busmq.spark.sink;

import static org.junit.jupiter.api.Assertions.assertTrue;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.junit.jupiter.api.Test;

class StagingRenewalTest {
    @Test
    void aRenewalThatFailedIsTriedAgainSoonAndNotWhenTheNextIsDue() throws InterruptedException {
        CountDownLatch soon = new CountDownLatch(5);
        CountDownLatch whenDue = new CountDownLatch(5);
        // One clock runs both, so that a machine that stands still for a moment delays both.
        try (StagingRenewal renewal = new StagingRenewal(failing(soon), "s", 2_000, 10);
                StagingRenewal rare = new StagingRenewal(failing(whenDue), "s", 2_000, 2_000)) {
            renewal.setEpoch(1);
            rare.setEpoch(1);
            assertTrue(soon.await(300, TimeUnit.SECONDS));
            assertTrue(
                    whenDue.getCount() > 0,
                    "it was tried no more often than a renewal that waits until the next is due");
        }
    }

    private static Supplier<SinkStore> failing(CountDownLatch tries) {
        return () -> {
            tries.countDown();
            throw BusException.of(ErrorKind.LINK_LOST, "url", "redis://host", "reason", "down");
        };
    }
}
