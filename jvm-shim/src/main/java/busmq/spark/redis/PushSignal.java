package busmq.spark.redis;

import java.util.concurrent.locks.LockSupport;

/** Is signalled when something was pushed to one of its queues. One reader waits on it; {@link PushNotifiers} makes it. */
public final class PushSignal implements AutoCloseable {
    private final Runnable leave;
    private volatile boolean signalled;
    private volatile Thread waiting;

    PushSignal(java.util.function.Consumer<PushSignal> leave) {
        this.leave = () -> leave.accept(this);
    }

    /**
     * Waits until it is signalled, at most so long; true when it was. A signal that came since the last call counts, so nothing is missed between a
     * look at the queue and the wait. It is also signalled after a broken subscription is back: something may have been pushed meanwhile.
     */
    public boolean await(long nanos) throws InterruptedException {
        long end = System.nanoTime() + nanos;
        waiting = Thread.currentThread();
        try {
            while (!signalled) {
                long left = end - System.nanoTime();
                if (left <= 0) {
                    return false;
                }
                LockSupport.parkNanos(this, left);
                if (Thread.interrupted()) {
                    throw new InterruptedException();
                }
            }
            signalled = false;
            return true;
        } finally {
            waiting = null;
        }
    }

    /** From any thread. */
    void signal() {
        signalled = true;
        LockSupport.unpark(waiting);
    }

    /** Stops listening. */
    @Override
    public void close() {
        leave.run();
    }
}
