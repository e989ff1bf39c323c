package busmq.spark.sink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import busmq.spark.BusException;
import org.junit.jupiter.api.Test;

/** Waiting for room in a full queue, with a clock of the test's own. */
class FullQueueWaitTest {
    private long now = 1000;

    private long pause(FullQueueWait policy, long left) {
        long pause = policy.pauseMs("q", () -> 10, left, now);
        now += pause;
        return pause;
    }

    @Test
    void aQueueThatStaysFullFailsAfterTheDeadlineAndSaysWhatIsLeft() {
        FullQueueWait policy = new FullQueueWait(5000);
        BusException error = assertThrows(BusException.class, () -> {
            for (int i = 0; i < 10_000; i++) {
                pause(policy, 7);
            }
        });
        assertTrue(
                error.getMessage()
                        .contains("'q' holds its maxsize of 10 messages for 5 s; 7 rows are not"
                                + " stored"),
                error.getMessage());
        assertTrue(now >= 6000 && now < 6200, () -> "failed at " + now);
    }

    @Test
    void eachStoredRowStartsTheDeadlineAnew() {
        FullQueueWait policy = new FullQueueWait(5000);
        for (int left = 100; left > 0; left--) {
            for (long start = now; now < start + 4000; ) {
                pause(policy, left);
            }
        }
        assertTrue(now > 251_000);
    }

    @Test
    void pausesBeginShortAndNeverGetLong() {
        FullQueueWait policy = new FullQueueWait(5000);
        assertEquals(5, pause(policy, 7));
        long longest = 0;
        for (int i = 0; i < 40; i++) {
            longest = Math.max(longest, pause(policy, 7));
        }
        assertEquals(100, longest);
    }

    @Test
    void aTimeoutOfZeroFailsAtOnce() {
        BusException error = assertThrows(BusException.class, () -> pause(new FullQueueWait(0), 7));
        assertTrue(
                error.getMessage()
                        .contains("holds its maxsize of 10 messages; 7 rows are not stored"),
                error.getMessage());
    }
}
