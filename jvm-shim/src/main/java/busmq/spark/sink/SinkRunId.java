package busmq.spark.sink;

/**
 * Under which tasks stage ({@code writing/sink_runs.py} has the rules).
 *
 * @param id of a query from its start to its end, or of a batch write; unique for ever
 */
record SinkRunId(String sink, String id) {}
