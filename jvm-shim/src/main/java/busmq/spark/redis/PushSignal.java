package busmq.spark.redis;

import java.util.concurrent.locks.LockSupport;

/**
 * Is signalled when something was pushed to one of its queues. A reader waits on it;
 * {@link PushListeners} makes it.
 */
public final class PushSignal implements AutoCloseable {
    private final Runnable stopListening;
    private volatile boolean hasSignal;
    private volatile Thread waitingThread;

    PushSignal(java.util.function.Consumer<PushSignal> stopListening) {
        this.stopListening = () -> stopListening.accept(this);
    }

    /**
     * Waits until it is signalled, at most so long; true when it was. A signal that came since the
     * last call counts, so nothing is missed between a look at the queue and the wait. It is also
     * signalled after a broken subscription is back: something may have been pushed meanwhile.
     */
    public boolean await(long nanos) throws InterruptedException {
        long end = System.nanoTime() + nanos;
        waitingThread = Thread.currentThread();
        try {
            while (!hasSignal) {
                long left = end - System.nanoTime();
                if (left <= 0) {
                    return false;
                }
                LockSupport.parkNanos(this, left);
                if (Thread.interrupted()) {
                    throw new InterruptedException();
                }
            }
            hasSignal = false;
            return true;
        } finally {
            waitingThread = null;
        }
    }

    /** From any thread. */
    void signal() {
        hasSignal = true;
        LockSupport.unpark(waitingThread);
    }

    /** Stops listening. */
    @Override
    public void close() {
        stopListening.run();
    }
}
