package busmq.spark.sink;

import static busmq.spark.store.ReadStore.text;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.core.QueueKeys;
import busmq.spark.redis.RedisCall;
import busmq.spark.redis.RedisLink;
import busmq.spark.redis.RedisLinks;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.Collectors;

/**
 * The runs of a sink and their staged lists, also after a run that ended before its commit:
 * {@code writing/sink_runs.py}, with the same scripts.
 */
final class SinkRuns {
    private static final int NAMES_PER_CALL = SharedPythonConstants.intNumber("namesPerCall");

    private final RedisLinks links;
    private final RedisLink recordLink;
    private final String sink;

    SinkRuns(RedisLinks links, RedisLink recordLink, String sink) {
        this.links = links;
        this.recordLink = recordLink;
        this.sink = sink;
    }

    /**
     * A task of a run is about to stage rows for queues: the epoch of the run. The first call
     * removes the staged lists of earlier runs.
     *
     * @param more calls that travel along, and {@code answered} what takes their replies or
     *     errors. Not in the call that begins the run, which frees memory: a full Redis may accept
     *     the call after it
     */
    SinkRun begin(
            String run,
            List<String> queues,
            List<RedisCall> more,
            Consumer<List<Object>> answered) {
        List<RedisCall> calls = new ArrayList<>();
        calls.add(RedisCall.script(
                "begin", List.of(QueueKeys.sinkRecord(sink)), run, SinkStore.STAGE_TTL_S));
        calls.addAll(callsWithNames("enlist", queues, run, SinkStore.STAGE_TTL_S));
        int own = calls.size();
        calls.addAll(more);
        List<Object> replies = recordLink.tryAll(calls);
        for (Object reply : replies.subList(0, own)) {
            if (reply instanceof BusException failed) {
                throw failed;
            }
        }
        List<?> begun = (List<?>) replies.get(0);
        long epoch = Long.parseLong(text(begun.get(0)));
        if ((Long) begun.get(1) == 0) {
            answered.accept(replies.subList(own, replies.size()));
            return new SinkRun(epoch, List.of());
        }
        byte[] manifest = (byte[]) begun.get(2);
        List<StagedList> held =
                manifest.length == 0 ? List.of() : BatchManifestCodec.decode(manifest);
        sweep(run, epoch, held);
        return new SinkRun(
                epoch, held.stream().map(StagedList::queue).distinct().toList());
    }

    /** Whether a run has begun after the one with this epoch. */
    boolean hasNewerRun(long epoch) {
        Object found =
                recordLink.run(RedisCall.command("HGET", QueueKeys.sinkRecord(sink), "epoch"));
        return found != null && epoch < Long.parseLong(text(found));
    }

    /** Renews the ttl of what the run has staged. */
    void renew(long epoch) {
        for (String key : List.of(QueueKeys.sinkRecord(sink), QueueKeys.sinkQueues(sink))) {
            recordLink.run(RedisCall.command("EXPIRE", key, SinkStore.MIN_RECORD_TTL_S));
        }
        runAtServers(
                stagedQueues(),
                keys -> RedisCall.script(
                        "renew",
                        List.of(keys.stages(sink)),
                        epoch,
                        keys.stage(""),
                        SinkStore.STAGE_TTL_S));
    }

    private void sweep(String run, long epoch, List<StagedList> held) {
        Map<String, List<StagedList>> kept =
                held.stream().collect(Collectors.groupingBy(StagedList::queue));
        Set<String> queues = stagedQueues();
        runAtServers(queues, keys -> {
            List<Object> args = new ArrayList<>(List.of(epoch, keys.stage("")));
            kept.getOrDefault(keys.name(), List.of())
                    .forEach(
                            part -> args.add(part.key().substring(keys.stage("").length())));
            return RedisCall.script("sweep", List.of(keys.stages(sink)), args.toArray());
        });
        callsWithNames("unlist", queues, run).forEach(recordLink::run);
    }

    /** The queues that runs of the sink have staged for. */
    private Set<String> stagedQueues() {
        List<?> flat =
                (List<?>) recordLink.run(RedisCall.command("HGETALL", QueueKeys.sinkQueues(sink)));
        Set<String> found = new HashSet<>();
        for (int i = 0; i < flat.size(); i += 2) {
            found.add(text(flat.get(i)));
        }
        return found;
    }

    private void runAtServers(Set<String> queues, Function<QueueKeys, RedisCall> call) {
        Map<String, Integer> servers = links.locate(queues);
        servers.keySet().stream()
                .collect(Collectors.groupingBy(servers::get))
                .forEach((server, part) -> links.link(server)
                        .runAll(part.stream()
                                .map(queue -> call.apply(links.keys(queue)))
                                .toList()));
    }

    private List<RedisCall> callsWithNames(
            String script, Collection<String> queues, Object... before) {
        List<String> names = List.copyOf(queues);
        List<RedisCall> calls = new ArrayList<>();
        for (int at = 0; at < names.size(); at += NAMES_PER_CALL) {
            List<Object> args = new ArrayList<>(List.of(before));
            args.addAll(names.subList(at, Math.min(names.size(), at + NAMES_PER_CALL)));
            calls.add(
                    RedisCall.script(script, List.of(QueueKeys.sinkQueues(sink)), args.toArray()));
        }
        return calls;
    }
}
