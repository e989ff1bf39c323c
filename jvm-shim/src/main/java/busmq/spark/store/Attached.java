package busmq.spark.store;

/** What a queue is: {@code born} names its incarnation, {@code existed} says whether somebody had created it before. */
public record Attached(boolean existed, long ttlS, String born) {}
