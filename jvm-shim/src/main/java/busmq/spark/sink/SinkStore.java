package busmq.spark.sink;

import busmq.spark.core.RandomToken;
import static busmq.spark.store.ReadStore.text;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.ErrorKind;
import busmq.spark.PyText;
import busmq.spark.core.QueueKeys;
import busmq.spark.core.ServerIndex;
import busmq.spark.core.TopicPartitioning;
import busmq.spark.options.WriteOptions;
import busmq.spark.redis.RedisCall;
import busmq.spark.redis.RedisLink;
import busmq.spark.redis.RedisLinks;
import busmq.spark.store.TopicPartitionLocator;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * The calls of a sink to Redis ({@code writing/sink.py} has the rules). For one thread; closing it
 * gives its links back.
 */
final class SinkStore implements AutoCloseable {
    /** The lifetime of our own records beside a queue with a shorter ttl. */
    static final int MIN_RECORD_TTL_S = SharedPythonConstants.intNumber("minRecordTtlS");

    /** The lifetime in Redis of staged rows whose attempt never commits. */
    static final int STAGE_TTL_S = SharedPythonConstants.intNumber("stageTtlS");

    private static final String STAGE = ":stage:";
    private static final int MAX_MESSAGES_PER_ACK =
            SharedPythonConstants.intNumber("maxMessagesPerAck");
    private static final String RESTART_REMEDY = SharedPythonConstants.text("restartRemedy");
    private static final String RECORD_LOST_REMEDY = SharedPythonConstants.text("recordLostRemedy");

    private final WriteOptions options;
    private final RedisLinks links;
    /** Queues that were attached with {@link #begin}, until {@link #attach} is asked for them. */
    private final Set<String> attachedWithBegin = new HashSet<>();

    SinkStore(WriteOptions options) {
        this.options = options;
        this.links = RedisLinks.fromPool(options.redis());
    }

    QueueKeys keys(String queue) {
        return links.keys(queue);
    }

    RedisLink link(int server) {
        return links.link(server);
    }

    /**
     * The servers of queues, each of which is created with the sink's options if need be and may
     * be. Throws BUSMQ_QUEUE_MISSING.
     */
    Map<String, Integer> attach(List<String> queues) {
        Map<String, Integer> servers = links.locate(queues);
        servers.keySet().stream()
                .collect(Collectors.groupingBy(servers::get))
                .forEach((server, part) -> attach(part, server));
        return servers;
    }

    /**
     * The partition queues of a topic, which is created if need be and may be. On several servers
     * they are created, too: each on its server in turn, and not where its name hashes to. Throws
     * BUSMQ_TOPIC_MISSING.
     */
    List<String> topicQueues(String topic) {
        TopicPartitionLocator topics =
                new TopicPartitionLocator(links, options.redis().cluster());
        List<String> queues = TopicPartitioning.partitionQueues(
                topic, topics.findOrCreate(topic, options.create() ? options.partitions() : null));
        if (options.create() && links.links().size() > 1) {
            Map<String, Integer> found = links.locate(queues);
            topics.locate(queues).forEach((queue, server) -> {
                if (!server.equals(found.get(queue))) { // so it does not exist
                    attach(queue, server);
                }
            });
        }
        return queues;
    }

    /** Attach a queue at a known server. */
    void attach(String queue, int server) {
        attach(List.of(queue), server);
    }

    private void attach(List<String> all, int server) {
        List<String> queues =
                all.stream().filter(queue -> !attachedWithBegin.remove(queue)).toList();
        List<Object> replies =
                link(server).runAll(queues.stream().map(this::attachCall).toList());
        for (int i = 0; i < replies.size(); i++) {
            if ((Long) ((List<?>) replies.get(i)).get(0) < 0) {
                throw BusException.of(ErrorKind.QUEUE_MISSING, "queue", queues.get(i));
            }
        }
    }

    private RedisCall attachCall(String queue) {
        Object[] args = {
            options.ttlS(),
            options.maxsize(),
            "false",
            RandomToken.next(),
            options.create() ? 1 : 0,
            MIN_RECORD_TTL_S
        };
        return RedisCall.script("attach", keys(queue).all(), args);
    }

    /**
     * The calls that push a chunk; sent again after a broken link, which is what at-least-once
     * allows.
     */
    RedisCall pushCall(String queue, List<byte[]> values) {
        QueueKeys keys = keys(queue);
        return RedisCall.script("push", keys.appending(), concat(values, keys.available()));
    }

    /** The call that pushes what of a chunk is not there yet; safe to repeat. */
    RedisCall pushOnceCall(
            String query, String queue, List<byte[]> values, List<RowOrigin> origins) {
        QueueKeys keys = keys(queue);
        List<Object> words = new ArrayList<>(List.of(keys.available(), query, MIN_RECORD_TTL_S));
        for (int from = 0, until; from < values.size(); from = until) {
            String born = origins.get(from).born();
            for (until = from + 1;
                    until < values.size() && origins.get(until).born().equals(born); ) {
                until++;
            }
            words.addAll(List.of(born, until - from));
            for (int i = from; i < until; i++) {
                words.addAll(List.of(origins.get(i).id(), origins.get(i).index(), values.get(i)));
            }
        }
        List<String> names = Stream.concat(
                        keys.peerKeys().stream(),
                        Stream.of(keys.sinks(), keys.clock(), keys.acks(), keys.bytes()))
                .toList();
        return RedisCall.script("push_once", names, words.toArray());
    }

    long maxsize(String queue, int server) {
        Object found =
                link(server).run(RedisCall.command("HGET", keys(queue).metadata(), "maxsize"));
        return found == null ? 0 : Long.parseLong(text(found));
    }

    /** Appends a chunk to a staged list, unless it is there; the reply is the rows in the list. */
    static RedisCall stageCall(StagedList.OpenStagedList list, List<byte[]> values) {
        String attempt = list.key().substring(list.key().lastIndexOf(STAGE) + STAGE.length());
        return RedisCall.script(
                "stage",
                List.of(list.key(), list.stagesKey),
                concat(values, list.rows(), STAGE_TTL_S, attempt, list.epoch));
    }

    /**
     * A task of a run is about to stage rows for queues, which are attached in the same round trip
     * where that is to one server, or cluster.
     */
    SinkRun begin(SinkRunId run, List<String> queues) {
        List<RedisCall> calls = links.links().size() == 1
                ? queues.stream().map(this::attachCall).toList()
                : List.of();
        return runsOf(run.sink()).begin(run.id(), queues, calls, replies -> {
            for (int i = 0; i < replies.size(); i++) {
                // Otherwise the same call reports what is wrong.
                if (replies.get(i) instanceof List<?> found && (Long) found.get(0) >= 0) {
                    attachedWithBegin.add(queues.get(i));
                }
            }
        });
    }

    /** The runs of a sink. */
    SinkRuns runsOf(String sink) {
        return new SinkRuns(links, recordLink(sink), sink);
    }

    /**
     * Appends a chunk on the connection that has written the whole list so far. Never to be
     * repeated on the same list: the first try may still arrive. To a list that is gone it adds
     * nothing, so no key is left without a ttl.
     */
    static RedisCall stageMoreCall(StagedList.OpenStagedList list, List<byte[]> values) {
        return RedisCall.command(concat(values, "RPUSHX", list.key())).asNonIdempotent();
    }

    static void checkStagedRows(StagedList.OpenStagedList list, int added, long found) {
        if (found != list.rows() + added) {
            throw stagingLostError(
                    "", "?", list.queue, list.rows() + added, found, list.key(), RESTART_REMEDY);
        }
    }

    /**
     * Make {@code staged} what the batch consists of, unless it has been recorded before: then that
     * holds. The commit point. {@code span} says which part of its sources the batch covers,
     * {@code epoch} which run staged it, {@code least} a batch that the sink has recorded before.
     * Throws BUSMQ_SINK_ROLLED_BACK when the record is older than that, BUSMQ_STALE_BATCH,
     * BUSMQ_STALE_RUN when a later run has begun, BUSMQ_BATCH_CHANGED when the batch on record is
     * another one, and BUSMQ_SINK_TARGETS when a copy of the checkpoint writes it elsewhere.
     */
    List<StagedList> record(
            String sink,
            long batch,
            List<StagedList> staged,
            String query,
            String span,
            long epoch,
            long least) {
        try {
            forEachServer(staged, part -> keepStaged(sink, batch, part));
        } catch (BusException error) {
            throw error.kind() == ErrorKind.STAGING_LOST && runsOf(sink).hasNewerRun(epoch)
                    ? staleRunError(sink, batch)
                    : error;
        }
        List<String> key = List.of(QueueKeys.sinkRecord(sink));
        List<?> reply = (List<?>) recordLink(sink)
                .run(RedisCall.script(
                        "record",
                        key,
                        batch,
                        BatchManifestCodec.encode(staged, epoch),
                        MIN_RECORD_TTL_S,
                        query,
                        span,
                        epoch,
                        least));
        if (reply.isEmpty()) {
            throw staleRunError(sink, batch);
        }
        if (reply.size() == 1) {
            throw staleBatchError(sink, batch, text(reply.get(0)));
        }
        if (reply.size() == 2) {
            long known = Long.parseLong(text(reply.get(1)));
            throw CommittedBatchNote.rolledBackError(
                    sink, known < 0 ? "no batch of it" : "batch " + known, least);
        }
        List<StagedList> held = BatchManifestCodec.decode((byte[]) reply.get(1));
        StagedBatchContent before = new StagedBatchContent(text(reply.get(2)), held);
        StagedBatchContent now = new StagedBatchContent(span, staged);
        if (before.hasOtherQueuesOfACopy(now)) {
            throw StagedBatchContent.targetsChangedError(
                    sink,
                    batch,
                    StagedBatchContent.targets(held, false),
                    StagedBatchContent.targets(staged, false));
        }
        Map<String, Object> changed = before.differencesTo(now);
        if (!changed.isEmpty()) {
            throw BusException.of(
                    ErrorKind.BATCH_CHANGED,
                    "sink",
                    sink,
                    "batch",
                    batch,
                    "by",
                    changed.get("by"),
                    "found",
                    changed.get("found"),
                    "expected",
                    changed.get("expected"),
                    "remedy",
                    changed.get("remedy"));
        }
        if (staged.stream().map(StagedList::queue).distinct().count() > 1) {
            // Tasks name them anew with the next batch; names that no row has any more are removed
            // here.
            recordLink(sink).run(RedisCall.command("UNLINK", QueueKeys.sinkQueues(sink)));
        }
        return held;
    }

    /**
     * Drop what is on record for a sink, with its progress and what is left of its lists. For a run
     * that delivers at least once: its batches have the same numbers and other rows, and what was
     * recorded comes again with them.
     *
     * @param queue the one queue of the sink, which has progress also where the record names
     *     other queues; null: rows name theirs
     */
    void forget(String sink, String queue) {
        byte[] manifest = (byte[]) recordLink(sink)
                .run(RedisCall.script(
                        "void", List.of(QueueKeys.sinkRecord(sink)), MIN_RECORD_TTL_S));
        if (manifest.length > 0) {
            List<StagedList> held = BatchManifestCodec.decode(manifest);
            discard(held);
            forgetProgress(sink, held);
        }
        if (queue != null) {
            link(links.locate(Set.of(queue)).get(queue))
                    .run(RedisCall.command("HDEL", keys(queue).sinks(), sink));
        }
    }

    /**
     * Extends the ttl of lists of one server to that of a record, before the record names them.
     * Throws BUSMQ_STAGING_LOST when one does not hold its rows.
     */
    private void keepStaged(String sink, long batch, List<StagedList> staged) {
        Stream<RedisCall> calls = staged.stream()
                .flatMap(s -> Stream.of(
                        RedisCall.command("EXPIRE", s.key(), MIN_RECORD_TTL_S),
                        RedisCall.command("LLEN", s.key())));
        List<Object> replies = link(staged.get(0).server()).runAll(calls.toList());
        for (int i = 0; i < staged.size(); i++) {
            StagedList s = staged.get(i);
            long found = (Long) replies.get(2 * i + 1);
            if (found < s.rows()) {
                throw stagingLostError(
                        sink, batch, s.queue(), s.rows(), found, s.key(), RESTART_REMEDY);
            }
        }
    }

    /**
     * The last batch of a sink as Redis knows it.
     *
     * @param batch -1: none is on record
     * @param voidBelow records of runs with a lower epoch were declared void
     * @param progress of each queue that was asked for; empty where it has none
     */
    record SinkState(long batch, String digest, long voidBelow, List<String> progress) {}

    /** The last batch that is on record, and the progress of the sink in queues. */
    SinkState state(String sink, List<String> queues) {
        List<?> reply = (List<?>) recordLink(sink)
                .run(RedisCall.command(
                        "HMGET", QueueKeys.sinkRecord(sink), "batch", "manifest", "void"));
        Map<String, Integer> servers =
                queues.isEmpty() ? Map.of() : links.locate(new LinkedHashSet<>(queues));
        Map<String, String> progress = new HashMap<>();
        servers.keySet().stream()
                .collect(Collectors.groupingBy(servers::get))
                .forEach((server, part) -> {
                    List<Object> found = link(server)
                            .runAll(part.stream()
                                    .map(queue ->
                                            RedisCall.command("HGET", keys(queue).sinks(), sink))
                                    .toList());
                    for (int i = 0; i < part.size(); i++) {
                        progress.put(
                                part.get(i), found.get(i) == null ? "" : text(found.get(i)));
                    }
                });
        return new SinkState(
                reply.get(0) == null ? -1 : Long.parseLong(text(reply.get(0))),
                reply.get(1) == null
                        ? ""
                        : CommittedBatchNote.listsDigest(
                                BatchManifestCodec.decode((byte[]) reply.get(1))),
                reply.get(2) == null ? 0 : Long.parseLong(text(reply.get(2))),
                queues.stream().map(progress::get).toList());
    }

    /** The lists recorded for this batch; empty when another batch, or none, is on record. */
    List<StagedList> recordedLists(String sink, long batch) {
        List<?> reply = (List<?>) recordLink(sink)
                .run(RedisCall.command("HMGET", QueueKeys.sinkRecord(sink), "batch", "manifest"));
        return reply.get(0) != null && Long.parseLong(text(reply.get(0))) == batch
                ? BatchManifestCodec.decode((byte[]) reply.get(1))
                : List.of();
    }

    /**
     * A commit that stopped because the queue is at its {@code maxsize}; calling it again goes on.
     */
    record CommitStoppedAtMaxsize(long maxsize, long left) {}

    /**
     * Append the staged lists of one queue in their order; null when all is appended. Safe to
     * repeat at any time, by any process, until then.
     */
    CommitStoppedAtMaxsize commit(String sink, long batch, List<StagedList> staged) {
        try {
            return commit(sink, batch, staged, 0);
        } catch (BatchProgressConflict other) {
            Object epoch = recordLink(sink)
                    .run(RedisCall.command("HGET", QueueKeys.sinkRecord(sink), "void"));
            try {
                return commit(sink, batch, staged, epoch == null ? 0 : Long.parseLong(text(epoch)));
            } catch (BatchProgressConflict still) {
                String queue = staged.get(0).queue();
                long rows = staged.stream().mapToLong(StagedList::rows).sum();
                throw BusException.of(
                        ErrorKind.BATCH_CHANGED,
                        "sink",
                        sink,
                        "batch",
                        batch,
                        "by",
                        "rows",
                        "found",
                        "rows that are appended to " + PyText.repr(queue),
                        "expected",
                        rows + " rows for it",
                        "remedy",
                        RECORD_LOST_REMEDY);
            }
        }
    }

    /**
     * Progress under the number of the batch is of another record than the one that is committed.
     */
    private static final class BatchProgressConflict extends Exception {
        BatchProgressConflict() {
            super(null, null, false, false);
        }
    }

    /**
     * {@code voidBelow}: progress of records that were made by runs with lower epochs counts for
     * nothing.
     */
    private CommitStoppedAtMaxsize commit(
            String sink, long batch, List<StagedList> staged, long voidBelow)
            throws BatchProgressConflict {
        SinkQueueCommitter queue =
                new SinkQueueCommitter(keys(staged.get(0).queue()), sink, batch, staged, voidBelow);
        int server = staged.get(0).server();
        while (queue.isOpen()) {
            SinkQueueCommitter.Status found =
                    queue.applyReplies(link(server).runAll(queue.nextCalls()));
            if (found == SinkQueueCommitter.Status.MISSING) {
                attach(staged.get(0).queue(), server); // it expired meanwhile
                queue.reopen();
            } else if (found == SinkQueueCommitter.Status.OTHER_RECORD) {
                throw new BatchProgressConflict();
            }
        }
        return queue.partialCommit();
    }

    /**
     * Append the staged lists of many queues, a round trip for many of them: the lists of each
     * queue that is not finished then, since it has no room, is missing, or has progress of another
     * record. Each is for {@link #commit}.
     */
    List<List<StagedList>> commitMany(String sink, long batch, List<StagedList> staged) {
        List<List<StagedList>> rest = new ArrayList<>();
        forEachServer(staged, part -> {
            for (List<List<StagedList>> group : SinkQueueCommitter.groups(part)) {
                List<SinkQueueCommitter> queues = group.stream()
                        .map(own -> new SinkQueueCommitter(
                                keys(own.get(0).queue()), sink, batch, own, 0))
                        .toList();
                rest.addAll(SinkQueueCommitter.commitTogether(
                        queues, calls -> link(part.get(0).server()).runAll(calls)));
            }
        });
        return rest;
    }

    /** Remove staged lists that are part of no batch. */
    void discard(List<StagedList> staged) {
        forEachServer(staged, part -> link(part.get(0).server())
                .runAll(callForEach(part, s -> RedisCall.command("UNLINK", s.key()))));
    }

    /**
     * Drop the progress and the record of a sink that will never commit again (a finished batch
     * write).
     */
    void forget(String sink, List<StagedList> staged) {
        forgetProgress(sink, staged);
        recordLink(sink).run(RedisCall.command("DEL", QueueKeys.sinkRecord(sink)));
        recordLink(sink).run(RedisCall.command("DEL", QueueKeys.sinkQueues(sink)));
    }

    private void forgetProgress(String sink, List<StagedList> staged) {
        forEachServer(staged, part -> {
            Stream<String> queues = part.stream().map(StagedList::queue).distinct();
            link(part.get(0).server())
                    .runAll(queues.map(queue ->
                                    RedisCall.command("HDEL", keys(queue).sinks(), sink))
                            .toList());
        });
    }

    /** Delete the messages that the queues hold now; messages that are pushed meanwhile stay. */
    void truncate(List<String> queues) {
        Map<String, Integer> servers = links.locate(new LinkedHashSet<>(queues));
        servers.forEach((queue, server) -> {
            Object end =
                    link(server).run(RedisCall.command("LINDEX", keys(queue).messages(), -2));
            RedisCall trim = end == null
                    ? null
                    : RedisCall.script(
                            "trim",
                            List.of(keys(queue).messages()),
                            text(end),
                            MAX_MESSAGES_PER_ACK);
            while (trim != null && (Long) link(server).run(trim) == MAX_MESSAGES_PER_ACK) {
                continue;
            }
        });
    }

    @Override
    public void close() {
        links.close();
    }

    /** The server that has the record of a sink. */
    private RedisLink recordLink(String sink) {
        return link(ServerIndex.of(QueueKeys.sinkRecord(sink), links.links().size()));
    }

    private static void forEachServer(List<StagedList> staged, Consumer<List<StagedList>> run) {
        staged.stream()
                .collect(Collectors.groupingBy(
                        StagedList::server, TreeMap::new, Collectors.toList()))
                .values()
                .forEach(run);
    }

    private static List<RedisCall> callForEach(
            List<StagedList> staged, Function<StagedList, RedisCall> call) {
        return staged.stream().map(call).toList();
    }

    private static Object[] concat(List<byte[]> values, Object... before) {
        Object[] all = new Object[before.length + values.size()];
        System.arraycopy(before, 0, all, 0, before.length);
        for (int i = 0; i < values.size(); i++) {
            all[before.length + i] = values.get(i);
        }
        return all;
    }

    static BusException stagingLostError(
            String sink,
            Object batch,
            String queue,
            long expected,
            long found,
            String key,
            String remedy) {
        return BusException.of(
                ErrorKind.STAGING_LOST,
                "sink",
                sink,
                "batch",
                batch,
                "queue",
                queue,
                "expected",
                expected,
                "found",
                found,
                "key",
                key,
                "remedy",
                remedy);
    }

    private static BusException staleRunError(String sink, long batch) {
        return BusException.of(ErrorKind.STALE_RUN, "sink", sink, "batch", batch);
    }

    static BusException staleBatchError(String sink, long batch, String found) {
        return BusException.of(ErrorKind.STALE_BATCH, "sink", sink, "batch", batch, "found", found);
    }
}
