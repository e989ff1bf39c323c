package busmq.spark.redis;

/** Host and port of a cluster's node. */
record Node(String host, int port) {
}
