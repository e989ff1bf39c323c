package busmq.spark.store;

import busmq.spark.core.RandomToken;
import static java.nio.charset.StandardCharsets.UTF_8;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.ErrorKind;
import busmq.spark.PyText;
import busmq.spark.core.Loss;
import busmq.spark.core.PlannerIO;
import busmq.spark.core.Position;
import busmq.spark.core.QueueKeys;
import busmq.spark.core.QueueState;
import busmq.spark.core.Range;
import busmq.spark.core.TimeLookupResult;
import busmq.spark.core.TopicPartitioning;
import busmq.spark.options.RedisOptions;
import busmq.spark.options.OffsetBound;
import busmq.spark.redis.RedisCall;
import busmq.spark.redis.RedisLink;
import busmq.spark.redis.RedisLinks;
import busmq.spark.redis.PushListeners;
import java.util.ArrayList;
import java.util.Collection;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.SortedSet;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Supplier;
import java.util.stream.Collectors;

/**
 * The calls of a source to its queues, on the driver; many queues in one round trip. Answers are
 * under the queues' names. Not for two threads at once.
 */
public final class ReadStore extends BaseRedisStore {
    /**
     * The time in which a killed reader keeps its queues, unless it ran on the machine of the next
     * reader.
     */
    public static final long LEASE_MS = SharedPythonConstants.number("leaseMs");

    /**
     * Most queues in one script call: planning looks at each in some ten commands, and 100 take
     * Redis 1 to 3 ms.
     */
    private static final int QUEUES_PER_CALL = SharedPythonConstants.intNumber("queuesPerCall");
    /** Most messages dropped in one call. */
    private static final int MAX_MESSAGES_PER_ACK =
            SharedPythonConstants.intNumber("maxMessagesPerAck");
    /** The lifetime of our own records beside a queue with a shorter ttl. */
    private static final long MIN_RECORD_TTL_S = SharedPythonConstants.number("minRecordTtlS");
    /** Ages of messages in one call: to look for one takes Redis up to 0.1 ms. */
    private static final int AGES_PER_CALL = SharedPythonConstants.intNumber("agesPerCall");
    /** Known times of a queue in one call. */
    static final int PAIRS_PER_CALL = SharedPythonConstants.intNumber("pairsPerCall");

    private static final int QUEUES_PER_ANNOUNCEMENT =
            SharedPythonConstants.intNumber("queuesPerAnnouncement");

    private static final int MIN_PAIRS_PER_QUEUE =
            SharedPythonConstants.intNumber("minPairsPerQueue");
    private static final int MAX_PAIRS_PER_QUESTION =
            SharedPythonConstants.intNumber("maxPairsPerQuestion");
    private static final String OTHER_GROUP_KIND_REMEDY =
            SharedPythonConstants.text("otherGroupKindRemedy");
    private static final String ONE_GROUP_REMEDY = SharedPythonConstants.text("oneGroupRemedy");
    private static final String COMMAND = "command:";

    /** The errors of a Redis that cannot write, or of a user who may not. */
    static final Set<ErrorKind> NOTE_REFUSALS = EnumSet.of(
            ErrorKind.UNAUTHORIZED,
            ErrorKind.SERVER_REFUSED,
            ErrorKind.SERVER_FULL,
            ErrorKind.READ_ONLY,
            ErrorKind.WRITES_PAUSED);

    private final RedisOptions options;
    private final TopicPartitionLocator topics;
    private final Map<String, Integer> ownListeners = new HashMap<>();

    /** Makes the record that is stored with each renewal of a lease; null where none is. */
    private Supplier<ReaderRecord.Announcement> announcement;

    /** Nothing is connected yet. */
    public ReadStore(RedisOptions options) {
        super(options);
        this.options = options;
        topics = new TopicPartitionLocator(links, cluster);
    }

    /** Store a record with each renewal of a lease from now on. */
    public void announceWith(Supplier<ReaderRecord.Announcement> made) {
        announcement = made;
    }

    /**
     * The number of processes of this query that may be subscribed to pushes of a queue: only more
     * than these show another consumer.
     */
    public void setOwnListeners(String queue, int processes) {
        ownListeners.put(queue, processes);
    }

    /**
     * The partition queues of topics; one that does not exist is made with {@code partitions}.
     * Throws BUSMQ_TOPIC_MISSING where that is null.
     */
    public List<String> topicQueues(List<String> names, Long partitions) {
        List<String> found = new ArrayList<>();
        for (String topic : names) {
            List<String> queues = TopicPartitioning.partitionQueues(
                    topic, topics.findOrCreate(topic, partitions));
            topics.locate(queues.stream()
                            .filter(queue -> !servers.containsKey(queue))
                            .toList())
                    .forEach(servers::put);
            found.addAll(queues);
        }
        return found;
    }

    /** Return the number of partitions of a topic; 0 where no topic has this name. */
    public int countPartitions(String topic) {
        try {
            return topics.findOrCreate(topic, null);
        } catch (BusException error) {
            if (EnumSet.of(ErrorKind.TOPIC_MISSING, ErrorKind.CONFIG).contains(error.kind())) {
                return 0;
            }
            throw error;
        }
    }

    /**
     * Create the queues, or adopt those that exist. Throws BUSMQ_QUEUE_MISSING when one does not
     * exist and may not be created.
     */
    public Map<String, AttachResult> attach(Collection<String> queues, boolean create, long ttlS) {
        return askAbout(
                queues,
                1,
                part -> RedisCall.script(
                        "attach",
                        keys(part.get(0)).all(),
                        ttlS,
                        0,
                        "false",
                        RandomToken.next(),
                        create ? 1 : 0,
                        MIN_RECORD_TTL_S),
                (reply, at, queue) -> {
                    List<?> items = (List<?>) reply;
                    if ((Long) items.get(0) < 0) {
                        throw BusException.of(ErrorKind.QUEUE_MISSING, "queue", queue);
                    }
                    return new AttachResult(
                            (Long) items.get(0) == 1,
                            (Long) items.get(1),
                            text(items.get(3)),
                            (Long) items.get(4) == 1);
                });
    }

    /** The state of each queue; the number is the id whose fingerprint is wanted, -1 for none. */
    public Map<String, QueueState> states(Map<String, Long> wanted) {
        return askAbout(
                wanted.keySet(),
                QUEUES_PER_CALL,
                part -> stateCall(part, wanted),
                (reply, at, queue) ->
                        QueueState.of(queue, list(reply), QueueState.ITEMS_PER_QUEUE * at));
    }

    private RedisCall stateCall(List<String> queues, Map<String, Long> wanted) {
        return RedisCall.script(
                "state",
                keysOf(queues, keys -> List.of(keys.metadata(), keys.messages(), keys.msgid())),
                idsOf(queues, wanted));
    }

    /**
     * The call that asks for the state of one queue, where it travels with others;
     * {@link QueueState#of} reads the reply.
     */
    public RedisCall stateCall(String queue, long wanted) {
        return stateCall(List.of(queue), Map.of(queue, wanted));
    }

    /**
     * Whether calls that are sent together to the server of a queue are also answered in their
     * order, whatever is sent again.
     */
    public boolean keepsReplyOrder() {
        return !cluster;
    }

    /** Of the queues those that have all that follows a position (lua/intact.lua). */
    public Map<String, PlannerIO.IntactQueue> intact(
            Map<String, Position> at, Map<String, Long> upto) {
        Map<String, PlannerIO.IntactQueue> found = askAbout(
                upto.keySet(),
                QUEUES_PER_CALL,
                part -> {
                    List<Object> args = new ArrayList<>();
                    part.forEach(queue -> args.addAll(List.of(
                            at.get(queue).born(),
                            at.get(queue).last(),
                            at.get(queue).mark(),
                            upto.get(queue))));
                    return RedisCall.script(
                            "intact",
                            keysOf(
                                    part,
                                    keys -> List.of(
                                            keys.metadata(), keys.messages(), keys.msgid())),
                            args.toArray());
                },
                (reply, place, queue) -> {
                    List<Object> items = list(reply).subList(2 * place, 2 * place + 2);
                    return items.get(0) == null
                            ? null
                            : new PlannerIO.IntactQueue(
                                    QueueState.parseId(queue, "last id", items.get(0)),
                                    text(items.get(1)));
                });
        found.values().removeIf(Objects::isNull);
        return found;
    }

    /** The fingerprint of one message of each queue, by id; empty when it is not stored. */
    public Map<String, String> marks(Map<String, Long> ids) {
        return askAbout(
                ids.keySet(),
                QUEUES_PER_CALL,
                part -> RedisCall.script(
                        "marks", keysOf(part, keys -> List.of(keys.messages())), idsOf(part, ids)),
                (reply, at, queue) -> text(list(reply).get(at)));
    }

    /**
     * The id given last by each queue (0: none): one native command, the cheapest way to see that
     * nothing was pushed.
     */
    public Map<String, Long> counters(Collection<String> queues) {
        if (cluster) {
            return askAbout(
                    queues,
                    1,
                    part -> RedisCall.command("GET", keys(part.get(0)).msgid()),
                    (reply, at, queue) -> parseCounter(queue, reply));
        }
        return askAbout(
                queues,
                Integer.MAX_VALUE,
                part -> {
                    List<Object> words = new ArrayList<>(List.of("MGET"));
                    part.forEach(queue -> words.add(keys(queue).msgid()));
                    return RedisCall.command(words.toArray());
                },
                (reply, at, queue) -> parseCounter(queue, list(reply).get(at)));
    }

    private static long parseCounter(String queue, Object reply) {
        return reply == null ? 0 : QueueState.parseId(queue, "last id", reply);
    }

    /**
     * Acknowledge positions. Messages that every subscription has acked are dropped, in steps that
     * never block Redis long. Idempotent and cumulative; a refused position drops nothing.
     */
    public Map<String, AckResult> ack(Map<String, Position> positions, String subscription) {
        Map<String, AckResult> results = new HashMap<>();
        Set<String> open = new LinkedHashSet<>(positions.keySet());
        while (!open.isEmpty()) {
            Map<String, AckResult> found = askAbout(
                    open,
                    QUEUES_PER_CALL,
                    part -> ackCall(part, positions, subscription),
                    (reply, at, queue) -> {
                        List<Object> row = list(list(reply).get(at));
                        return new AckResult(
                                text(row.get(0)),
                                row.get(1) instanceof byte[] detail
                                        ? text(detail)
                                        : String.valueOf(row.get(1)));
                    });
            found.forEach((queue, result) -> {
                if (!result.status().equals("more")) {
                    results.put(queue, result);
                    open.remove(queue);
                }
            });
        }
        return results;
    }

    private RedisCall ackCall(
            List<String> part, Map<String, Position> positions, String subscription) {
        List<Object> args =
                new ArrayList<>(List.of(subscription, MAX_MESSAGES_PER_ACK, MIN_RECORD_TTL_S));
        part.forEach(queue -> args.addAll(List.of(
                positions.get(queue).last(),
                positions.get(queue).born(),
                positions.get(queue).mark())));
        return RedisCall.script("ack_to", keysOf(part, QueueKeys::retentionKeys), args.toArray());
    }

    /**
     * Note the time of the newest id of each queue: pushes of peers do not (lua/note_time.lua). A
     * note that Redis refuses is left out; the clock is then less exact.
     */
    public void noteTimesIfAllowed(Collection<String> queues) {
        try {
            noteTimes(queues);
        } catch (BusException error) {
            if (!NOTE_REFUSALS.contains(error.kind())) {
                throw error;
            }
        }
    }

    private void noteTimes(Collection<String> queues) {
        askAbout(
                queues,
                QUEUES_PER_CALL,
                part -> RedisCall.script(
                                "note_time",
                                keysOf(part, QueueKeys::retentionKeys),
                                MAX_MESSAGES_PER_ACK)
                        .asOptional(),
                (reply, at, queue) -> reply);
    }

    /**
     * Look up a time in the clock of each queue. The time is in milliseconds since 1970; a negative
     * one counts back from now.
     */
    public Map<String, TimeLookupResult> findTimes(Map<String, Long> wanted) {
        noteTimesIfAllowed(wanted.keySet());
        return askAbout(
                wanted.keySet(),
                1,
                part -> RedisCall.script(
                        "id_at",
                        keysOf(
                                part,
                                keys -> List.of(keys.metadata(), keys.messages(), keys.clock())),
                        wanted.get(part.get(0))),
                (reply, at, queue) -> {
                    long[] found = list(reply).stream()
                            .mapToLong(item -> Long.parseLong(text(item)))
                            .toArray();
                    return new TimeLookupResult(found[0], found[1], found[2], found[3], found[4]);
                });
    }

    /** The known times around the ids of ranges, many in one round trip. */
    public Map<Range, TimesOfIds> times(List<Range> ranges) {
        int most = Math.max(
                MIN_PAIRS_PER_QUEUE,
                Math.min(PAIRS_PER_CALL, MAX_PAIRS_PER_QUESTION / Math.max(1, ranges.size())));
        Map<Range, TimesOfIds> found = new HashMap<>();
        ranges.stream().collect(Collectors.groupingBy(Range::server)).forEach((server, wanted) -> {
            for (List<Range> asked = wanted;
                    !asked.isEmpty();
                    asked = fetchTimes(link(server), asked, most, found)) {
                continue;
            }
        });
        return found;
    }

    /** The result is of which ranges there are more. */
    private List<Range> fetchTimes(
            RedisLink link, List<Range> ranges, int most, Map<Range, TimesOfIds> found) {
        List<Object> replies = link.runAll(ranges.stream()
                .map(range -> nextTimesCall(range, found.get(range), most))
                .toList());
        List<Range> unfinished = new ArrayList<>();
        for (int i = 0; i < replies.size(); i++) {
            Range range = ranges.get(i);
            TimesOfIds before = found.getOrDefault(range, TimesOfIds.NONE);
            TimesOfIds all = before.append(TimesOfIds.of(list(replies.get(i)), range.born()));
            found.put(range, all);
            if (all.lastId() > before.lastId() && all.lastId() < range.last()) {
                unfinished.add(range);
            }
        }
        return unfinished;
    }

    private RedisCall nextTimesCall(Range range, TimesOfIds known, int most) {
        long first = known == null ? range.first() : Math.max(range.first(), known.lastId() + 1);
        return timesCall(keys(range.queue()), first, range.last(), most);
    }

    /** The call for so many of the known times around some ids. */
    static RedisCall timesCall(QueueKeys keys, long first, long last, int most) {
        return RedisCall.script("times", List.of(keys.metadata(), keys.clock()), first, last, most);
    }

    /** Note the time of the newest id of a queue. */
    static RedisCall noteCall(QueueKeys keys) {
        return RedisCall.script("note_time", keys.retentionKeys(), MAX_MESSAGES_PER_ACK)
                .asOptional();
    }

    /**
     * For how many milliseconds a message of each queue has been there, or a little less; -1 where
     * that is not known.
     */
    public Map<String, Long> ages(Map<String, Long> ids) {
        return askAbout(
                ids.keySet(),
                AGES_PER_CALL,
                part -> RedisCall.script(
                        "ages",
                        keysOf(part, keys -> List.of(keys.metadata(), keys.clock())),
                        idsOf(part, ids)),
                (reply, at, queue) -> (Long) list(reply).get(at));
    }

    /**
     * Register the subscription on every queue, at the oldest message, the newest, or an acked id.
     * The one it has stays; where the queue keeps what is acknowledged, it goes back to that id.
     * Throws BUSMQ_QUEUE_BUSY where it is the name of a shared group, and where the queue takes
     * commands and has a group.
     */
    public void subscribe(Map<String, OffsetBound> starts, String subscription) {
        askAbout(
                starts.keySet(),
                1,
                part -> {
                    QueueKeys keys = keys(part.get(0));
                    return RedisCall.script(
                            "subscribe",
                            List.of(keys.metadata(), keys.msgid(), keys.messages(), keys.acks()),
                            subscription,
                            subscribeArgument(starts.get(part.get(0))),
                            MIN_RECORD_TTL_S);
                },
                (reply, at, queue) -> {
                    String found = text(reply);
                    if ("shared".equals(found)) {
                        throw BusException.of(
                                ErrorKind.QUEUE_BUSY,
                                "queue",
                                queue,
                                "found",
                                "has a group " + PyText.repr(subscription) + ", which is shared",
                                "remedy",
                                OTHER_GROUP_KIND_REMEDY);
                    }
                    if (found.startsWith(COMMAND)) {
                        String group = PyText.repr(found.substring(COMMAND.length()));
                        throw BusException.of(
                                ErrorKind.QUEUE_BUSY,
                                "queue",
                                queue,
                                "found",
                                "takes commands, which are for one group, and has group " + group,
                                "remedy",
                                ONE_GROUP_REMEDY);
                    }
                    return reply;
                });
    }

    private static String subscribeArgument(OffsetBound start) {
        return start.kind() == OffsetBound.Kind.ID ? "=" + start.value() : start.text();
    }

    /** The subscriptions of each queue with their last acked ids, sorted. */
    public Map<String, Map<String, Long>> subscriptions(Collection<String> queues) {
        return askAbout(
                queues,
                1,
                part -> RedisCall.command("HGETALL", keys(part.get(0)).acks()),
                (reply, at, queue) -> {
                    Map<String, Long> found = new TreeMap<>();
                    List<Object> items = list(reply);
                    for (int i = 0; i < items.size(); i += 2) {
                        String name = text(items.get(i));
                        if (!name.startsWith(":")) {
                            found.put(
                                    name,
                                    QueueState.parseId(
                                            queue, "acked id of a subscription", items.get(i + 1)));
                        }
                    }
                    return found;
                });
    }

    /**
     * Try to become the reader of every queue; who holds each afterwards. {@code dead} names
     * holders known to be dead.
     */
    public Map<String, String> lease(
            Collection<String> queues,
            String subscription,
            String token,
            Map<String, String> dead) {
        return askAbout(
                queues,
                1,
                part -> leaseCall(part.get(0), subscription, token, dead),
                (reply, at, queue) -> text(reply));
    }

    private RedisCall leaseCall(
            String queue, String subscription, String token, Map<String, String> dead) {
        QueueKeys keys = keys(queue);
        String gone = dead.getOrDefault(queue, "");
        if (announcement == null) {
            return RedisCall.script(
                    "lease", List.of(keys.lease(subscription)), token, LEASE_MS, gone);
        }
        List<String> names = new ArrayList<>(List.of(keys.lease(subscription)));
        names.addAll(keys.peerKeys());
        names.addAll(List.of(keys.acks(), keys.readers()));
        ReaderRecord.Announcement said = announcement.get();
        Object own = said.own().containsKey(queue) ? said.own().get(queue) : "";
        return RedisCall.script(
                "lease", names, token, LEASE_MS, gone, said.field(), said.record(), LEASE_MS, own);
    }

    /** Return a description of the holder of a lease, for people. */
    public String describeHolder(String queue, String subscription, String token) {
        Object stored = linkOf(queue)
                .run(RedisCall.command(
                        "HGET", keys(queue).readers(), ReaderRecord.leaseField(subscription)));
        return ReaderRecord.describe(token, stored == null ? "" : text(stored));
    }

    /** The ids of each queue that a reader passes over, rising; queues without any are left out. */
    public Map<String, SortedSet<Long>> skippedIds(Collection<String> queues, String reader) {
        Map<String, SortedSet<Long>> found = new HashMap<>(askAbout(
                queues,
                1,
                part -> RedisCall.command("HGET", keys(part.get(0)).acks(), ":skip:" + reader),
                (reply, at, queue) -> {
                    SortedSet<Long> ids = new TreeSet<>();
                    for (String id : reply == null ? new String[0] : text(reply).split(",")) {
                        ids.add(QueueState.parseId(queue, "skipped id", id.getBytes(UTF_8)));
                    }
                    return ids;
                }));
        found.values().removeIf(SortedSet::isEmpty);
        return found;
    }

    /** Give leases up, where they are still the token's. */
    public void release(Collection<String> queues, String subscription, String token) {
        askAbout(
                queues,
                1,
                part -> RedisCall.script(
                        "release", List.of(keys(part.get(0)).lease(subscription)), token),
                (reply, at, queue) -> reply);
    }

    /** The token of each queue's lease holder; empty when there is no lease. */
    public Map<String, String> holders(Collection<String> queues, String subscription) {
        return askAbout(
                queues,
                1,
                part -> RedisCall.command("GET", keys(part.get(0)).lease(subscription)),
                (reply, at, queue) -> reply == null ? "" : text(reply));
    }

    /**
     * Touch every queue and renew its lease. For each: 1 alive, 0 missing, -1 another holds the
     * lease. An empty token renews no lease.
     */
    public Map<String, Long> keepAlive(
            Collection<String> queues, String subscription, String token) {
        ReaderRecord.Announcement said =
                announcement == null || token.isEmpty() ? null : announcement.get();
        return askAbout(
                queues,
                said == null ? QUEUES_PER_CALL : QUEUES_PER_ANNOUNCEMENT,
                part -> RedisCall.script(
                        "touch",
                        keysOf(part, keys -> {
                            List<String> all = new ArrayList<>(keys.all());
                            all.addAll(List.of(keys.lease(subscription), keys.readers()));
                            return all;
                        }),
                        touchArguments(part, token, said)),
                (reply, at, queue) -> (Long) list(reply).get(at));
    }

    private static Object[] touchArguments(
            List<String> queues, String token, ReaderRecord.Announcement said) {
        List<Object> found = new ArrayList<>(List.of(
                token, token.isEmpty() ? 0 : LEASE_MS, MIN_RECORD_TTL_S, MAX_MESSAGES_PER_ACK));
        if (said != null) {
            found.addAll(List.of(said.field(), said.record(), LEASE_MS));
            for (String queue : queues) {
                found.add(said.own().containsKey(queue) ? said.own().get(queue) : "");
            }
        }
        return found.toArray();
    }

    /**
     * The last id of first..last such that the values up to it come to {@code budget} bytes (first
     * - 1: none fits), and their bytes.
     */
    public long[] lastIdWithinBytes(String queue, long first, long last, long budget) {
        return ByteBudgetEstimator.lastIdWithin(linkOf(queue), keys(queue), first, last, budget);
    }

    /** The error for a loss, which names its cause as far as Redis still shows it. */
    public BusException lossError(String queue, Loss loss) {
        QueueKeys keys = keys(queue);
        boolean unacked = (Long) linkOf(queue).run(RedisCall.command("EXISTS", keys.toack())) == 1;
        Object size = RedisLinks.askIfAllowed(linkOf(queue), RedisCall.command("DBSIZE"));
        return new LossCauseEvidence(
                        unacked, countPushSubscribers(queue), Long.valueOf(0).equals(size))
                .lossError(
                        queue,
                        loss,
                        Math.max(
                                PushListeners.isSubscribed(options, queue) ? 1 : 0,
                                ownListeners.getOrDefault(queue, 0)));
    }

    /**
     * Up to where a query that reads with this subscription, or without one, has acknowledged a
     * queue; 0 when that is not known.
     */
    public long ackedUpTo(String queue, String subscription) {
        Object found = subscription.isEmpty()
                ? linkOf(queue).run(RedisCall.command("HGET", keys(queue).metadata(), "acked"))
                : null;
        return subscription.isEmpty()
                ? number(found)
                : subscriptions(List.of(queue)).get(queue).getOrDefault(subscription, 0L);
    }

    private long countPushSubscribers(String queue) {
        return links.countPushSubscribers(queue, locate(List.of(queue)).get(queue));
    }

    /**
     * The error for ids from {@code need} on that a task misses; {@code oldest} is the oldest
     * stored id after them, 0 when there is none.
     */
    BusException removedError(String queue, long need, long last, long oldest) {
        QueueKeys keys = keys(queue);
        List<Object> found = linkOf(queue)
                .runAll(List.of(
                        RedisCall.command("GET", keys.msgid()),
                        RedisCall.command("EXISTS", keys.toack()),
                        RedisCall.command("HLEN", keys.acks())));
        long lastId = number(found.get(0));
        String expected = "ids " + need + ".." + last;
        // A subscription of another query counts as another consumer.
        LossCauseEvidence traces = new LossCauseEvidence(
                (Long) found.get(1) == 1,
                countPushSubscribers(queue) + Math.max(0, (Long) found.get(2) - 2),
                false);
        if (lastId < need) {
            return traces.lossError(
                    queue, new Loss("rolled-back", expected, "last id " + lastId), 1);
        }
        String stored = oldest > 0 ? "oldest stored id " + oldest : "nothing after them";
        return traces.lossError(
                queue, new Loss("removed", expected, stored, Math.max(0, oldest - need)), 1);
    }

    /** A reply that is a list. */
    @SuppressWarnings("unchecked")
    public static List<Object> list(Object reply) {
        return (List<Object>) reply;
    }

    /** A reply that is text. */
    public static String text(Object reply) {
        return new String((byte[]) reply, UTF_8);
    }

    static long number(Object reply) {
        return reply == null
                ? 0
                : reply instanceof Long found ? found : Long.parseLong(text(reply));
    }
}
