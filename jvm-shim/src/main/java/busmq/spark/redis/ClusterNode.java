package busmq.spark.redis;

/** Host and port of a cluster's node. */
record ClusterNode(String host, int port) {
}
