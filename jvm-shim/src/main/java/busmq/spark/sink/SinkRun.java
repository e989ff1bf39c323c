package busmq.spark.sink;

import java.io.Serializable;
import java.util.List;

/**
 * A run of a sink, as its tasks and its driver know it.
 *
 * @param epoch higher for a run that began later
 * @param before queues of the batch that was on record when the run began; only for the task
 *     that began it
 */
record SinkRun(long epoch, List<String> before) implements Serializable {
    static final SinkRun NONE = new SinkRun(0, List.of());
}
