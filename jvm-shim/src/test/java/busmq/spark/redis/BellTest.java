package busmq.spark.redis;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

class BellTest {
    private static final long MINUTE = 60_000_000_000L;
    private final Bell bell = new Bell(gone -> { });

    @Test
    void aRingBeforeTheWaitCountsOnce() throws InterruptedException {
        bell.ring();
        bell.ring();
        assertTrue(bell.await(0));
        assertFalse(bell.await(0));
    }

    @Test
    void aRingFromAnotherThreadEndsTheWait() throws InterruptedException {
        Thread other = new Thread(bell::ring);
        other.start();
        assertTrue(bell.await(MINUTE));
        other.join();
    }

    @Test
    void aReaderThatIsInterruptedStopsWaiting() {
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, () -> bell.await(MINUTE));
    }
}
