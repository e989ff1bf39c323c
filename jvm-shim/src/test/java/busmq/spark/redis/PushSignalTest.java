package busmq.spark.redis;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

class PushSignalTest {
    private static final long MINUTE = 60_000_000_000L;
    private final PushSignal signal = new PushSignal(gone -> {});

    @Test
    void aSignalBeforeTheWaitCountsOnce() throws InterruptedException {
        signal.signal();
        signal.signal();
        assertTrue(signal.await(0));
        assertFalse(signal.await(0));
    }

    @Test
    void aSignalFromAnotherThreadEndsTheWait() throws InterruptedException {
        Thread other = new Thread(signal::signal);
        other.start();
        assertTrue(signal.await(MINUTE));
        other.join();
    }

    @Test
    void aReaderThatIsInterruptedStopsWaiting() {
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, () -> signal.await(MINUTE));
    }
}
