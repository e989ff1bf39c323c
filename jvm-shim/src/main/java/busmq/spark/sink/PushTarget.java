package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import busmq.spark.redis.Call;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** Rows straight into their queues, each queue in order: at least once. A queue that vanished meanwhile is made anew where it may be. */
final class PushTarget implements GroupCommit.Target {
    private final SinkStore store;

    PushTarget(SinkStore store) {
        this.store = store;
    }

    /** What Redis refuses of one queue is an error of its lane alone: the others are stored, and need not come again. */
    @Override
    public int[] store(List<Lane> lanes) {
        place(lanes);
        Map<Integer, List<Integer>> byServer = IntStream.range(0, lanes.size()).boxed().filter(i -> lanes.get(i).refused == null)
                .collect(Collectors.groupingBy(i -> (Integer) lanes.get(i).place, LinkedHashMap::new, Collectors.toList()));
        int[] stored = new int[lanes.size()];
        byServer.forEach((server, part) -> push(server, lanes, part, stored));
        return stored;
    }

    @Override
    public long maxsize(Lane lane) {
        return store.maxsize(lane.queue, (Integer) lane.place);
    }

    private void place(List<Lane> lanes) {
        try {
            Lane.place(lanes, store, (queue, server) -> server);
        } catch (BusException error) {
            boolean away = error.kind() == ErrorKind.LINK_LOST; // then each of them would be waited for anew
            lanes.stream().filter(lane -> lane.place == null).forEach(lane -> attempt(lane, () -> {
                if (away) {
                    throw error;
                }
                Lane.place(List.of(lane), store, (queue, server) -> server);
            }));
        }
    }

    private void push(int server, List<Lane> lanes, List<Integer> part, int[] stored) {
        List<Object> replies = store.link(server).tryAll(part.stream().map(i -> push(lanes.get(i))).toList());
        for (int at = 0; at < replies.size(); at++) {
            int i = part.get(at);
            Object reply = replies.get(at);
            attempt(lanes.get(i), () -> stored[i] = counted(lanes.get(i), reply));
        }
    }

    private static void attempt(Lane lane, Runnable step) {
        try {
            step.run();
        } catch (BusException error) {
            lane.refused = error;
        }
    }

    private Call push(Lane lane) {
        return store.push(lane.queue, lane.chunk);
    }

    private int counted(Lane lane, Object reply) {
        if (reply instanceof BusException refused) {
            throw refused;
        }
        int server = (Integer) lane.place;
        long count = (Long) ((List<?>) reply).get(1);
        while (count < 0) {
            store.attach(lane.queue, server);
            count = (Long) ((List<?>) store.link(server).run(push(lane))).get(1);
        }
        return (int) count;
    }
}
