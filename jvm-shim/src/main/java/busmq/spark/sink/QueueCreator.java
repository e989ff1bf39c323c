package busmq.spark.sink;

import busmq.spark.options.WriteOptions;
import java.util.List;

/** A queue that is made before there is anything to write. */
public final class QueueCreator {
    private QueueCreator() {}

    /**
     * Creates the queue with the ttl and the maxsize of the options; one that exists keeps its own.
     */
    public static void create(WriteOptions options, String queue) {
        try (SinkStore store = new SinkStore(options)) {
            store.attach(List.of(queue));
        }
    }
}
