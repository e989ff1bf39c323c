package busmq.spark.redis;

/** Rings when something was pushed to one of its queues. Owned by one reader; {@link Doorbells} makes them. */
public interface Bell extends AutoCloseable {
    /**
     * Waits until it rings, at most so long; true when it rang. A ring that came since the last call counts, so nothing is missed between a
     * look at the queue and the wait. It also rings after a broken subscription is back: something may have been pushed meanwhile.
     */
    boolean await(long nanos) throws InterruptedException;

    /** Rings it from any thread, to wake the reader for another reason. */
    void ring();

    /** Stops listening; the subscription stays for other bells of the same queue. */
    @Override
    void close();
}
