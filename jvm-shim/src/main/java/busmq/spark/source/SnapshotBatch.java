package busmq.spark.source;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import busmq.spark.core.BatchPlanner;
import busmq.spark.core.Loss;
import busmq.spark.core.QueueState;
import busmq.spark.core.Range;
import busmq.spark.core.WorkSplitter;
import busmq.spark.options.ReadOptions;
import busmq.spark.options.OffsetBound;
import busmq.spark.store.ReadStore;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;

/** A snapshot of the queues, as id ranges. Removes nothing, leases nothing, creates nothing. */
record SnapshotBatch(ReadOptions options, StructType schema) implements Batch {
    SnapshotBatch {
        if (options.starting().hasKind(OffsetBound.Kind.LATEST)) {
            throw BusException.configError(
                    "startingOffsets=latest leaves nothing to a batch read; use earliest, or JSON"
                            + " with ids");
        }
    }

    @Override
    public InputPartition[] planInputPartitions() {
        try (ReadStore store = new ReadStore(options.redis())) {
            QueueSelection choice = new QueueSelection(options);
            List<String> found = choice.areNamedOneByOne()
                    ? options.subscribe()
                    : choice.findQueues(store, () -> {}, false);
            Map<String, Long> wanted = new HashMap<>();
            found.forEach(queue -> wanted.put(queue, -1L));
            Map<String, QueueState> states = store.states(wanted);
            // The other partitions of a topic have never been written to.
            List<String> names = options.topic().isEmpty()
                    ? found
                    : found.stream().filter(queue -> states.get(queue).exists()).toList();
            if (SourceSchema.hasTimestamp(schema)) {
                store.noteTimesIfAllowed(names);
            }
            Map<String, OffsetBound> starts = BatchPlanner.withoutTimes(
                    startPerQueue(names, options::startOf),
                    options.timestampStrategy(),
                    store::findTimes);
            Map<String, OffsetBound> ends = BatchPlanner.withoutTimes(
                    startPerQueue(names, options::endOf), "error", store::findTimes);
            List<Range> ranges = new ArrayList<>();
            for (String queue : names) {
                QueueState state = states.get(queue);
                if (!state.exists()) {
                    throw BusException.of(ErrorKind.QUEUE_MISSING, "queue", queue);
                }
                long before = lastIdAt(starts.get(queue), state);
                long until = lastIdAt(ends.get(queue), state);
                checkIds(queue, state, before, until, store);
                long first = Math.max(state.oldest(), before + 1);
                long last = Math.min(state.newest(), until);
                if (state.count() > 0 && first <= last) {
                    String born = state.born().isEmpty()
                            ? store.attach(List.of(queue), false, options.ttlS())
                                    .get(queue)
                                    .born()
                            : state.born();
                    ranges.add(new Range(
                            queue,
                            born,
                            first,
                            last,
                            store.locate(List.of(queue)).get(queue)));
                }
            }
            return WorkSplitter.tasks(ranges, options.minPartitions(), options.maxPerPartition())
                    .stream()
                    .map(part -> new RangePartition(part, Map.of()))
                    .toArray(InputPartition[]::new);
        }
    }

    /** Check that the ids in the options are stored. Throws BUSMQ_CONFIG, and the loss. */
    private void checkIds(
            String queue, QueueState state, long before, long until, ReadStore store) {
        if (options.endOf(queue).kind() == OffsetBound.Kind.ID) {
            BatchPlanner.checkGiven("endingOffsets", queue, until, state);
        }
        OffsetBound asked = options.askedStart(queue);
        if (asked != null && asked.kind() == OffsetBound.Kind.ID) {
            BatchPlanner.checkGiven("startingOffsets", queue, before, state);
            Loss loss = BatchPlanner.findLossAtStart(before, state);
            if (loss != null && before < until && options.failOnDataLoss()) {
                throw store.lossError(queue, loss);
            }
        }
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new ReaderFactory(options, schema);
    }

    private static Map<String, OffsetBound> startPerQueue(
            List<String> queues, Function<String, OffsetBound> option) {
        return queues.stream().distinct().collect(Collectors.toMap(queue -> queue, option));
    }

    private static long lastIdAt(OffsetBound start, QueueState state) {
        return switch (start.kind()) {
            case EARLIEST -> 0;
            case LATEST -> state.newest();
            case NEWEST -> state.lastId() - start.value();
            default -> start.value();
        };
    }
}
