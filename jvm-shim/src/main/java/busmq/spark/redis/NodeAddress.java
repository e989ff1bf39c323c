package busmq.spark.redis;

/** Host and port of a cluster's node. */
record NodeAddress(String host, int port) {}
