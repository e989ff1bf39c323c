package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.redis.Call;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** Rows straight into their queues, each queue in order: at least once. A queue that vanished meanwhile is made anew where it may be. */
final class PushTarget implements GroupCommit.Target {
    private final SinkStore store;
    /** What is stored of a round that broke off: it is tried again as a whole. */
    private final Map<Lane, Integer> stored = new IdentityHashMap<>();

    PushTarget(SinkStore store) {
        this.store = store;
    }

    @Override
    public int[] store(List<Lane> lanes) {
        Lane.place(lanes, store, (queue, server) -> server);
        Map<Integer, List<Lane>> byServer = lanes.stream().filter(lane -> !stored.containsKey(lane))
                .collect(Collectors.groupingBy(lane -> (Integer) lane.place, LinkedHashMap::new, Collectors.toList()));
        BusException failed = null;
        for (Map.Entry<Integer, List<Lane>> each : byServer.entrySet()) {
            try {
                push(each.getKey(), each.getValue());
            } catch (BusException error) {
                failed = error; // what is for the others does not wait for this one
            }
        }
        if (failed != null) {
            throw failed;
        }
        int[] counts = lanes.stream().mapToInt(stored::get).toArray();
        stored.clear();
        return counts;
    }

    @Override
    public long maxsize(Lane lane) {
        return store.maxsize(lane.queue, (Integer) lane.place);
    }

    private void push(int server, List<Lane> lanes) {
        List<Object> replies = store.link(server).runAll(lanes.stream().map(this::push).toList());
        for (int i = 0; i < replies.size(); i++) {
            stored.put(lanes.get(i), counted(lanes.get(i), replies.get(i)));
        }
    }

    private Call push(Lane lane) {
        return store.push(lane.queue, lane.chunk);
    }

    private int counted(Lane lane, Object reply) {
        int server = (Integer) lane.place;
        long count = (Long) ((List<?>) reply).get(1);
        while (count < 0) {
            store.attach(lane.queue, server);
            count = (Long) ((List<?>) store.link(server).run(push(lane))).get(1);
        }
        return (int) count;
    }
}
