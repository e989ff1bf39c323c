package busmq.spark.redis;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.Test;

class ExclusiveLinkTest {
    private final CountDownLatch underWay = new CountDownLatch(1);
    private final CountDownLatch answered = new CountDownLatch(1);
    private int closed;

    private final SingleCallerLink link = new SingleCallerLink() {
        @Override
        List<Object> execute(List<RedisCall> calls) {
            underWay.countDown();
            try {
                answered.await();
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
            return List.of("reply");
        }

        @Override
        public void close() {
            closed++;
        }
    };

    @Test
    void aLinkWithACallUnderWayIsNotPooledAndClosesAfterTheCall() throws InterruptedException {
        assertFalse(link.retireIfBusy());
        Thread other = new Thread(() -> link.run(RedisCall.command("PING")));
        other.start();
        underWay.await();
        assertTrue(link.retireIfBusy());
        assertEquals(0, closed);
        answered.countDown();
        other.join();
        assertEquals(1, closed);
        assertTrue(link.retireIfBusy(), "it stays out of the pool");
    }

    @Test
    void aLinkAfterItsCallIsKeptOpenForTheNext() {
        answered.countDown();
        assertEquals("reply", link.run(RedisCall.command("PING")));
        assertFalse(link.retireIfBusy());
        assertEquals(0, closed);
    }

    @Test
    void aSecondThreadIsRefusedWhileACallIsUnderWay() throws InterruptedException {
        Thread other = new Thread(() -> link.run(RedisCall.command("PING")));
        other.start();
        underWay.await();
        assertThrows(IllegalStateException.class, () -> link.run(RedisCall.command("PING")));
        answered.countDown();
        other.join();
        assertEquals("reply", link.run(RedisCall.command("PING")));
    }
}
