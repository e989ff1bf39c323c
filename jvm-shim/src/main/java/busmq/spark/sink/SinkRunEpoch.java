package busmq.spark.sink;

import java.io.Serializable;
import java.util.List;

/**
 * The number of a run of a sink: higher for one that began later.
 *
 * @param before queues of the batch that was on record when the run began; only for the task that began it
 */
record SinkRunEpoch(long number, List<String> before) implements Serializable {
    static final SinkRunEpoch NONE = new SinkRunEpoch(0, List.of());
}
