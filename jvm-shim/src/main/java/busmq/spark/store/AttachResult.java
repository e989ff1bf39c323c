package busmq.spark.store;

/**
 * The facts about an attached queue: {@code born} names its incarnation, {@code existed} is true
 * when a client had created it before.
 *
 * @param taken whether it keeps what is acknowledged, and a reader that is no group has taken
 *     messages from its head
 */
public record AttachResult(boolean existed, long ttlS, String born, boolean taken) {}
