package busmq.spark.store;

/** A server, or a node of a cluster ({@code node} is empty elsewhere): queues of one site are unavailable together. */
public record Site(int server, String node) {
}
