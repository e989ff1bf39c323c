package busmq.spark.store;

/**
 * A server, or a node of a cluster ({@code node} is empty elsewhere): queues of one failure domain
 * are unavailable together.
 */
public record FailureDomain(int server, String node) {}
