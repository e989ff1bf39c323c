package busmq.spark.sink;

import busmq.spark.redis.Call;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Rows straight into their queues, each queue in order: at least once. A queue that vanished meanwhile is made anew where it may be. */
final class PushTarget implements GroupCommit.Target {
    private final SinkStore store;

    PushTarget(SinkStore store) {
        this.store = store;
    }

    @Override
    public int[] store(List<Lane> lanes) {
        Lane.place(lanes, store, (queue, server) -> server);
        int[] stored = new int[lanes.size()];
        Map<Integer, List<Integer>> byServer = new LinkedHashMap<>();
        for (int i = 0; i < stored.length; i++) {
            byServer.computeIfAbsent((Integer) lanes.get(i).place, server -> new ArrayList<>()).add(i);
        }
        byServer.forEach((server, part) -> {
            List<Call> calls = part.stream().map(i -> push(lanes.get(i))).toList();
            List<Object> replies = store.link(server).runAll(calls);
            for (int i = 0; i < calls.size(); i++) {
                stored[part.get(i)] = counted(lanes.get(part.get(i)), replies.get(i));
            }
        });
        return stored;
    }

    @Override
    public long maxsize(Lane lane) {
        return store.maxsize(lane.queue, (Integer) lane.place);
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
