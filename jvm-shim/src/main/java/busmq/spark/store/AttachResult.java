package busmq.spark.store;

/** What a queue is: {@code born} names its incarnation, {@code existed} is true when a client had created it before. */
public record AttachResult(boolean existed, long ttlS, String born) {}
