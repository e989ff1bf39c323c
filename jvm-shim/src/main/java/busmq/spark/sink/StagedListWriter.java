package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.core.RandomToken;
import busmq.spark.redis.RedisCall;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Writes rows to lists that no consumer reads, one per queue, until the driver commits them. */
final class StagedListWriter implements RowBatcher.Target {
    private final SinkStore store;
    private final SinkRunId runId;
    private final String attempt;
    private final StagingRenewal renewal;
    private final List<StagedList.OpenStagedList> lists = new ArrayList<>();
    private volatile SinkRun run = SinkRun.NONE;

    /** {@code attempt} must be unique for ever. */
    StagedListWriter(SinkStore store, SinkRunId runId, String attempt, StagingRenewal renewal) {
        this.store = store;
        this.runId = runId;
        this.attempt = attempt;
        this.renewal = renewal;
    }

    @Override
    public int[] writeChunks(List<QueueWriteBuffer> buffers) {
        List<String> fresh = buffers.stream()
                .filter(buffer -> buffer.targetState == null)
                .map(buffer -> buffer.queue)
                .toList();
        if (!fresh.isEmpty()) {
            SinkRun begun = store.begin(runId, fresh);
            run = run.before().isEmpty() ? begun : run;
            renewal.setEpoch(begun.epoch());
        }
        QueueWriteBuffer.openTargetStates(buffers, store, this::openList);
        Map<Integer, List<QueueWriteBuffer>> byServer = new LinkedHashMap<>();
        for (QueueWriteBuffer buffer : buffers) {
            byServer.computeIfAbsent(listOf(buffer).server, server -> new ArrayList<>())
                    .add(buffer);
        }
        byServer.forEach(this::stageChunks);
        return buffers.stream().mapToInt(buffer -> buffer.chunk.size()).toArray();
    }

    @Override
    public long maxsize(QueueWriteBuffer buffer) {
        return 0; // staged lists are never full
    }

    /** The staged lists in the order of their first row. Only when nothing is under way. */
    SinkCommitMessage outcome() {
        return new SinkCommitMessage(
                listsWithUnconfirmed().stream()
                        .filter(segment -> !segment.chunks().isEmpty())
                        .toList(),
                run);
    }

    /** Return the lists, including lists without a confirmed row. */
    List<StagedList> listsWithUnconfirmed() {
        return lists.stream().flatMap(list -> list.segments().stream()).toList();
    }

    private StagedList.OpenStagedList openList(String queue, int server) {
        StagedList.OpenStagedList list = new StagedList.OpenStagedList(
                queue,
                server,
                store.keys(queue).stages(runId.sink()),
                run.epoch(),
                store.keys(queue).stage(attempt));
        lists.add(list);
        return list;
    }

    /**
     * After a broken link it is unknown whether the chunks were stored: they are staged again in
     * new lists, for as long as the link retries.
     */
    private void stageChunks(int server, List<QueueWriteBuffer> buffers) {
        try {
            applyReplies(
                    buffers,
                    store.link(server)
                            .runAll(buffers.stream()
                                    .map(StagedListWriter::chunkCall)
                                    .toList()));
        } catch (BusException error) {
            if (!error.kind().isLinkLost()) {
                throw error;
            }
            buffers.forEach(buffer -> listOf(buffer).startNextSegment(RandomToken.next()));
            applyReplies(
                    buffers,
                    store.link(server)
                            .runAll(buffers.stream()
                                    .map(buffer ->
                                            SinkStore.stageCall(listOf(buffer), buffer.chunk))
                                    .toList()));
        }
    }

    /** The first chunk of a list sets the ttl, by a script; the others need none. */
    private static RedisCall chunkCall(QueueWriteBuffer buffer) {
        return listOf(buffer).rows() == 0
                ? SinkStore.stageCall(listOf(buffer), buffer.chunk)
                : SinkStore.stageMoreCall(listOf(buffer), buffer.chunk);
    }

    private static void applyReplies(List<QueueWriteBuffer> buffers, List<Object> replies) {
        for (int i = 0; i < buffers.size(); i++) {
            List<byte[]> chunk = buffers.get(i).chunk;
            SinkStore.checkStagedRows(listOf(buffers.get(i)), chunk.size(), (Long) replies.get(i));
            listOf(buffers.get(i)).addChunk(chunk);
        }
    }

    private static StagedList.OpenStagedList listOf(QueueWriteBuffer buffer) {
        return (StagedList.OpenStagedList) buffer.targetState;
    }
}
