package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import busmq.spark.redis.Call;
import busmq.spark.store.LeaseHolder;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Writes rows to lists that no consumer reads, one per queue, until the driver commits them. */
final class StageTarget implements RowBatcher.Target {
    private final SinkStore store;
    private final SinkRun run;
    private final String attempt;
    private final StagingRenewal renewal;
    private final List<StagedList.Growing> lists = new ArrayList<>();
    private volatile Epoch epoch = Epoch.NONE;

    /** {@code attempt} must be unique for ever. */
    StageTarget(SinkStore store, SinkRun run, String attempt, StagingRenewal renewal) {
        this.store = store;
        this.run = run;
        this.attempt = attempt;
        this.renewal = renewal;
    }

    @Override
    public int[] store(List<QueueBuffer> buffers) {
        List<String> fresh = buffers.stream().filter(buffer -> buffer.place == null).map(buffer -> buffer.queue).toList();
        if (!fresh.isEmpty()) {
            Epoch begun = store.begin(run, fresh);
            epoch = epoch.before().isEmpty() ? begun : epoch;
            renewal.of(begun.number());
        }
        QueueBuffer.openPlaces(buffers, store, this::open);
        Map<Integer, List<QueueBuffer>> byServer = new LinkedHashMap<>();
        for (QueueBuffer buffer : buffers) {
            byServer.computeIfAbsent(list(buffer).server, server -> new ArrayList<>()).add(buffer);
        }
        byServer.forEach(this::stage);
        return buffers.stream().mapToInt(buffer -> buffer.chunk.size()).toArray();
    }

    @Override
    public long maxsize(QueueBuffer buffer) {
        return 0; // staged lists are never full
    }

    /** The staged lists in the order of their first row. Only when nothing is under way. */
    TaskOutcome outcome() {
        return new TaskOutcome(segments().stream().filter(segment -> !segment.runs().isEmpty()).toList(), epoch);
    }

    /** The same with those where nothing was confirmed. */
    List<StagedList> segments() {
        return lists.stream().flatMap(list -> list.segments().stream()).toList();
    }

    private StagedList.Growing open(String queue, int server) {
        StagedList.Growing list = new StagedList.Growing(queue, server, store.keys(queue).stages(run.sink()), epoch.number(), store.keys(queue).stage(attempt));
        lists.add(list);
        return list;
    }

    /** After a broken link the chunks, which are in doubt, are staged again where nothing else writes, with the link's own patience. */
    private void stage(int server, List<QueueBuffer> buffers) {
        try {
            settle(buffers, store.link(server).runAll(buffers.stream().map(StageTarget::first).toList()));
        } catch (BusException error) {
            if (error.kind() != ErrorKind.LINK_LOST) {
                throw error;
            }
            buffers.forEach(buffer -> list(buffer).cut(LeaseHolder.newToken()));
            settle(buffers, store.link(server).runAll(buffers.stream().map(buffer -> SinkStore.stage(list(buffer), buffer.chunk)).toList()));
        }
    }

    /** The first chunk of a list brings the ttl; the others need not be copied through Lua. */
    private static Call first(QueueBuffer buffer) {
        return list(buffer).rows() == 0 ? SinkStore.stage(list(buffer), buffer.chunk) : SinkStore.stageMore(list(buffer), buffer.chunk);
    }

    private static void settle(List<QueueBuffer> buffers, List<Object> replies) {
        for (int i = 0; i < buffers.size(); i++) {
            List<byte[]> chunk = buffers.get(i).chunk;
            SinkStore.checkStaged(list(buffers.get(i)), chunk.size(), (Long) replies.get(i));
            list(buffers.get(i)).add(chunk);
        }
    }

    private static StagedList.Growing list(QueueBuffer buffer) {
        return (StagedList.Growing) buffer.place;
    }
}
