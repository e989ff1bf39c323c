package busmq.spark.redis;

import java.util.concurrent.locks.LockSupport;

/** Rings when something was pushed to one of its queues. One reader waits on it; {@link Doorbells} makes it. */
public final class Bell implements AutoCloseable {
    private final Runnable leave;
    private volatile boolean rung;
    private volatile Thread waiting;

    Bell(java.util.function.Consumer<Bell> leave) {
        this.leave = () -> leave.accept(this);
    }

    /**
     * Waits until it rings, at most so long; true when it rang. A ring that came since the last call counts, so nothing is missed between a
     * look at the queue and the wait. It also rings after a broken subscription is back: something may have been pushed meanwhile.
     */
    public boolean await(long nanos) throws InterruptedException {
        long end = System.nanoTime() + nanos;
        waiting = Thread.currentThread();
        try {
            while (!rung) {
                long left = end - System.nanoTime();
                if (left <= 0) {
                    return false;
                }
                LockSupport.parkNanos(this, left);
                if (Thread.interrupted()) {
                    throw new InterruptedException();
                }
            }
            rung = false;
            return true;
        } finally {
            waiting = null;
        }
    }

    /** From any thread. */
    void ring() {
        rung = true;
        LockSupport.unpark(waiting);
    }

    /** Stops listening. */
    @Override
    public void close() {
        leave.run();
    }
}
