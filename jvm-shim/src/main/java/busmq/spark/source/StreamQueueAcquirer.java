package busmq.spark.source;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.ErrorKind;
import busmq.spark.PyText;
import busmq.spark.core.BatchPlanner;
import busmq.spark.core.Loss;
import busmq.spark.core.OffsetJson;
import busmq.spark.core.PlannerIO;
import busmq.spark.core.Position;
import busmq.spark.core.QueueState;
import busmq.spark.core.TimeLookupResult;
import busmq.spark.options.ReadOptions;
import busmq.spark.options.OffsetBound;
import busmq.spark.store.AckResult;
import busmq.spark.store.AttachResult;
import busmq.spark.store.EvictionCheck;
import busmq.spark.store.LeaseHolderToken;
import busmq.spark.store.ReadStore;
import busmq.spark.store.ReaderRecord;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.SortedSet;
import java.util.TreeSet;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Acquires queues for a stream, and compares them with its checkpoint: what
 * busmq_spark/spark/read/acquisition.py does.
 */
final class StreamQueueAcquirer implements PlannerIO, AutoCloseable {
    private static final String MESSAGES_TAKEN_WARNING =
            SharedPythonConstants.text("messagesTakenWarning").replace("%r", "{}");
    /**
     * An existing queue whose ttl is shorter is warned about: a query that is down for longer loses
     * what is in it.
     */
    private static final long SHORT_TTL_S = SharedPythonConstants.number("shortTtlS");

    private static final Logger LOG = LoggerFactory.getLogger(StreamQueueAcquirer.class);

    final ReadStore store;
    final SelfJoinReaders siblings;
    /** Queues whose lease another stream of this query holds, which renews it. */
    private final Set<String> sharedLeases = new HashSet<>();
    /**
     * The starts of the queues of startingOffsets, decided once, so that messages that are pushed
     * meanwhile are read.
     */
    private final Map<String, Position> entering = new HashMap<>();
    /** Queues of the checkpoint that do not exist any more, with their positions. */
    private final Set<Map.Entry<String, Position>> warned = new HashSet<>();

    /** The ids of each queue that an operator has marked for this reader to pass over. */
    private final Map<String, SortedSet<Long>> skipped = new HashMap<>();

    private final SortedSet<String> queues = new TreeSet<>(OffsetJson.BY_CODE_POINT);
    private final ReadOptions options;
    private final String token;
    private final ReaderKeepAlive keepAlive;

    StreamQueueAcquirer(
            ReadOptions options,
            SelfJoinReaders siblings,
            Supplier<ReaderRecord.Announcement> announcement) {
        this.options = options;
        this.siblings = siblings;
        store = new ReadStore(options.redis());
        token = siblings.token();
        store.announceWith(announcement);
        keepAlive = new ReaderKeepAlive(options, token, announcement);
    }

    /** The queues that are held. */
    SortedSet<String> queues() {
        return queues;
    }

    /**
     * Take hold of queues not held yet; true when there are some more now. {@code known} are
     * positions of the checkpoint: such a queue is compared before it is touched. {@code done}: up
     * to where a batch that is read again was done before, where that is not the same: a
     * subscription that is new begins there. {@code isFirstBatch} says that startingOffsets counts.
     */
    boolean acquire(
            Collection<String> names,
            Map<String, Position> known,
            Map<String, Long> done,
            boolean isFirstBatch) {
        List<String> wanted = names.stream()
                .distinct()
                .filter(queue -> !queues.contains(queue))
                .toList();
        if (wanted.isEmpty()) {
            return false;
        }
        if (queues.isEmpty()) {
            EvictionCheck.checkEvictionPolicies(store, options.requireNoEviction());
        }
        Map<String, Loss> losses =
                findLosses(wanted.stream().filter(known::containsKey).toList(), known);
        Map<String, Long> ttls = attachQueues(wanted, known);
        if (ttls.isEmpty()) {
            return false;
        }
        if (!token.isEmpty()) {
            refuseMixedReaders(ttls.keySet());
            decideEntryPositions(
                    ttls.keySet().stream()
                            .filter(queue -> !known.containsKey(queue))
                            .toList(),
                    isFirstBatch);
        }
        try {
            if (!token.isEmpty()) {
                sharedLeases.addAll(QueueReaderLeases.acquireLeases(
                        store, ttls.keySet(), options.subscription(), token, siblings));
            }
            if (!options.subscription().isEmpty()) {
                Map<String, OffsetBound> starts = new HashMap<>();
                ttls.keySet().forEach(queue -> {
                    boolean sound = known.containsKey(queue) && losses.get(queue) == null;
                    starts.put(
                            queue,
                            sound
                                    ? OffsetBound.afterId(done.getOrDefault(
                                            queue, known.get(queue).last()))
                                    : subscriptionStart(queue));
                });
                checkAckedByOthers(
                        ttls.keySet().stream()
                                .filter(queue -> starts.get(queue).equals(OffsetBound.EARLIEST)
                                        && !known.containsKey(queue))
                                .toList(),
                        isFirstBatch);
                store.subscribe(starts, options.subscription());
            }
        } catch (RuntimeException error) {
            QueueReaderLeases.releaseIfReachable(
                    store, ttls.keySet(), options.subscription(), token);
            throw error;
        }
        queues.addAll(ttls.keySet());
        findSkippedIds(ttls.keySet());
        addToKeepAlive(ttls);
        return true;
    }

    /**
     * Look for marks, which stay as they are while this reader holds the leases, and end with the
     * life of their queue.
     */
    private void findSkippedIds(Collection<String> names) {
        if (!token.isEmpty()) {
            skipped.keySet().removeAll(names);
            store.skippedIds(names, options.subscription()).forEach((queue, ids) -> {
                skipped.put(queue, ids);
                LOG.warn(
                        "queue {}: this reader passes over ids {}, which busmq skip has marked",
                        PyText.repr(queue),
                        ids.stream().map(String::valueOf).collect(Collectors.joining(", ")));
            });
        }
    }

    /** The ids of each queue that this reader passes over. */
    Map<String, SortedSet<Long>> skipped() {
        return skipped;
    }

    /** Keep these alive; also those whose lease another stream renews. */
    private void addToKeepAlive(Map<String, Long> ttls) {
        Map<String, Long> own = new HashMap<>(ttls);
        own.keySet().removeAll(sharedLeases);
        keepAlive.addQueues(own, store.failureDomains(own.keySet()));
    }

    /**
     * Return the losses of the queues after their position in the checkpoint; null for none. Throws
     * the first loss, unless that is allowed.
     */
    Map<String, Loss> findLosses(Collection<String> names, Map<String, Position> known) {
        Map<String, Long> wanted = new HashMap<>();
        names.forEach(queue -> wanted.put(queue, known.get(queue).last()));
        Map<String, Loss> losses = new HashMap<>();
        store.states(wanted).forEach((queue, state) -> {
            Loss loss = Loss.between(known.get(queue), state);
            if (loss != null && options.failOnDataLoss()) {
                throw lossError(queue, loss, known.get(queue));
            }
            if (loss == null && state.done() > known.get(queue).last()) {
                LOG.warn(
                        "queue {}: what was acknowledged up to id {} is kept, and is read again"
                                + " from id {} on, where this checkpoint is",
                        PyText.repr(queue),
                        state.done(),
                        known.get(queue).last() + 1);
            }
            losses.put(queue, loss);
        });
        return losses;
    }

    /** failOnDataLoss=false: say what was lost after a position. */
    void warnOfLoss(String queue, Loss loss, Position at) {
        LOG.warn(
                "{}; going on from the oldest stored message",
                lossError(queue, loss, at).getMessage());
    }

    /**
     * Of queues that do not exist any more and are not created again: no planning comes upon what
     * they lost.
     */
    private void warnOfMissingQueues(Collection<String> names, Map<String, Position> known) {
        List<String> unknown = names.stream()
                .filter(queue ->
                        known.containsKey(queue) && warned.add(Map.entry(queue, known.get(queue))))
                .toList();
        findLosses(unknown, known).forEach((queue, loss) -> {
            if (loss != null) {
                warnOfLoss(queue, loss, known.get(queue));
            }
        });
    }

    /**
     * Throws BUSMQ_QUEUE_BUSY when another query has taken a queue over (this one was cut off from
     * Redis for longer than its lease).
     */
    void raiseIfTaken() {
        String queue = keepAlive.takenQueue();
        if (queue != null) {
            throw QueueReaderLeases.busyError(
                    store, queue, otherHolder(queue), options.subscription());
        }
    }

    /** Return the facts about the queue for the planner. */
    BatchPlanner.AcquiredQueues heldQueues(boolean isFirstBatch) {
        return new BatchPlanner.AcquiredQueues(queues, entering, isFirstBatch);
    }

    @Override
    public Map<String, Long> askQueueCounters(Collection<String> names) {
        return store.counters(names);
    }

    @Override
    public Map<String, IntactQueue> askIntactQueues(
            Map<String, Position> at, Map<String, Long> upto) {
        return store.intact(at, upto);
    }

    @Override
    public Map<String, QueueState> askQueueStates(Map<String, Long> ids) {
        return store.states(ids);
    }

    @Override
    public Map<String, TimeLookupResult> askIdsAtTimes(Map<String, Long> wanted) {
        return store.findTimes(wanted);
    }

    @Override
    public Map<String, String> askFingerprints(Map<String, Long> ids) {
        return store.marks(ids);
    }

    @Override
    public long[] askLastIdWithinBytes(String queue, long first, long last, long budget) {
        return store.lastIdWithinBytes(queue, first, last, budget);
    }

    @Override
    public Position handleLoss(String queue, Position at, Loss loss) {
        if (at == null || options.failOnDataLoss()) {
            throw lossError(queue, loss, at);
        }
        return resumeAfterLoss(queue, at, loss);
    }

    @Override
    public void dropExpiredQueue(String queue) {
        queues.remove(queue);
    }

    /** An ack was refused since Redis holds another history than the checkpoint. */
    void failOnRefusedAck(String queue, Position position, AckResult result) {
        String kind =
                switch (result.status()) {
                    case "missing" -> "expired";
                    case "older" -> "rolled-back";
                    default -> result.status();
                };
        if (options.failOnDataLoss()) {
            String expected = "message " + position.last() + " of incarnation " + position.born()
                    + " (fingerprint " + position.mark() + ")";
            throw lossError(
                    queue,
                    new Loss(
                            kind,
                            expected,
                            result.detail().isEmpty() ? "no such queue" : result.detail()),
                    null);
        }
    }

    /** Ends the thread and gives the leases up. */
    @Override
    public void close() {
        keepAlive.close();
        store.close();
    }

    /** Attach; the result is the ttl of every queue that exists now. */
    private Map<String, Long> attachQueues(Collection<String> names, Map<String, Position> known) {
        Map<String, Long> ttls = new HashMap<>();
        boolean named = !options.subscribe().isEmpty();
        try {
            store.attach(
                            names,
                            options.create() && options.subscribePattern() == null,
                            options.ttlS())
                    .forEach((queue, found) -> {
                        ttls.put(queue, found.ttlS());
                        if (found.taken()) {
                            LOG.warn(MESSAGES_TAKEN_WARNING, PyText.repr(queue));
                        }
                        warnIfShort(queue, found);
                    });
        } catch (BusException error) {
            if (error.kind() != ErrorKind.QUEUE_MISSING) {
                throw error;
            }
            if (names.size() > 1) { // one of them
                names.forEach(queue -> ttls.putAll(attachQueues(List.of(queue), known)));
            } else if (named
                    || (known.containsKey(names.iterator().next()) && options.failOnDataLoss())) {
                throw error;
            } else {
                // It matched the pattern and has expired since, or is a partition that was never
                // written to.
                warnOfMissingQueues(names, known);
            }
        }
        return ttls;
    }

    private static void warnIfShort(String queue, AttachResult found) {
        if (found.existed() && found.ttlS() < SHORT_TTL_S) {
            LOG.warn(
                    "queue {} keeps its own ttl of {} s, that of its creation: if nothing holds it"
                        + " for longer, its messages are gone (and that will be noticed). Keep a"
                        + " query or an attached producer on it, or create it anew with a longer"
                        + " one: ttl in Spark, ttl_s in Python",
                    PyText.repr(queue),
                    found.ttlS());
        }
    }

    /** A reader with a subscription and one without would drop each other's messages. */
    private void refuseMixedReaders(Collection<String> names) {
        if (options.subscription().isEmpty()) {
            store.subscriptions(names).forEach((queue, found) -> {
                if (!found.isEmpty()) {
                    throw busyError(
                            queue,
                            "has the subscriptions " + String.join(", ", found.keySet()),
                            "A reader without one would wait for them or lose messages to them:"
                                + " set option 'subscription', or read with ack=none; what reads"
                                + " no more is ended by busmq unsubscribe");
                }
            });
            return;
        }
        store.holders(names, "").forEach((queue, holder) -> {
            if (!holder.isEmpty() && !LeaseHolderToken.isDead(holder)) {
                throw busyError(
                        queue,
                        "is read by a query without a subscription ("
                                + store.describeHolder(queue, "", holder) + ")",
                        "That query would lose messages to this one: stop it, or give it an option"
                                + " 'subscription' of its own");
            }
        });
    }

    /**
     * A new subscription does not see what others had acked before: a warning, or an error where a
     * user asks for such messages.
     */
    private void checkAckedByOthers(Collection<String> names, boolean isFirstBatch) {
        String own = options.subscription();
        Map<String, Map<String, Long>> others = new HashMap<>(store.subscriptions(names));
        others.values().removeIf(found -> found.isEmpty() || found.containsKey(own));
        Map<String, Long> wanted = new HashMap<>();
        others.keySet().forEach(queue -> wanted.put(queue, -1L));
        store.states(wanted).forEach((queue, state) -> {
            // The stored ids of the queue have a known end.
            if (state.floor() <= 0 || state.done() > 0) {
                return;
            }
            String text = "queue " + PyText.repr(queue) + ": " + state.floor()
                    + " messages (ids 1.." + state.floor() + ") had left it before subscription "
                    + PyText.repr(own) + " came, acknowledged by "
                    + String.join(", ", others.get(queue).keySet());
            if (isFirstBatch
                    && options.failOnDataLoss()
                    && OffsetBound.EARLIEST.equals(options.askedStart(queue))) {
                throw BusException.configError(
                        text + ", and startingOffsets=earliest asks for them. Leave"
                                + " startingOffsets out, or set failOnDataLoss=false, to begin with"
                                + " the oldest message that is stored");
            }
            LOG.warn(
                    "{}; it begins with the oldest that is stored. To register one before others"
                            + " ack: busmq subscribe QUEUE NAME",
                    text);
        });
    }

    private static BusException busyError(String queue, String found, String remedy) {
        return BusException.of(
                ErrorKind.QUEUE_BUSY, "queue", queue, "found", found, "remedy", remedy);
    }

    /** Decide where queues begin that do not begin at their oldest message. */
    private void decideEntryPositions(Collection<String> names, boolean isFirstBatch) {
        Map<String, OffsetBound> starts = new HashMap<>();
        names.forEach(
                queue -> starts.put(queue, BatchPlanner.firstStart(options, queue, isFirstBatch)));
        starts.values().removeIf(OffsetBound.EARLIEST::equals);
        if (starts.isEmpty()) {
            return;
        }
        Map<String, OffsetBound> later =
                BatchPlanner.withoutTimes(starts, options.timestampStrategy(), store::findTimes);
        Map<String, Map<String, Long>> subscriptions = store.subscriptions(later.keySet());
        Map<String, Long> wanted = new HashMap<>();
        later.keySet().forEach(queue -> wanted.put(queue, -1L));
        store.states(wanted).forEach((queue, state) -> {
            Position end = new Position(
                    state.born(), BatchPlanner.startsAfter(queue, later.get(queue), state), "");
            Map<String, Long> others = new HashMap<>(subscriptions.get(queue));
            long count = Loss.countMessagesToDelete(
                    state, end.last(), others.remove(options.subscription()), others.values());
            if (count > 0 && !options.discard()) {
                throw BusException.of(
                        ErrorKind.UNREAD_BACKLOG,
                        "queue",
                        queue,
                        "count",
                        count,
                        "last",
                        end.last(),
                        "start",
                        options.shownStart(queue));
            }
            if (count > 0) {
                LOG.warn(
                        "queue {}: {} unread messages up to id {} will be deleted, as"
                                + " discardBacklog=true says",
                        PyText.repr(queue),
                        count,
                        end.last());
            }
            entering.put(queue, end);
        });
    }

    /**
     * Return the start of a new subscription: no later than its query, so that unread messages are
     * not deleted.
     */
    private OffsetBound subscriptionStart(String queue) {
        return entering.containsKey(queue)
                ? OffsetBound.afterId(entering.get(queue).last())
                : OffsetBound.EARLIEST;
    }

    /**
     * failOnDataLoss=false: enter anew at the oldest stored message. The loss is counted and logged
     * once, since the next offset is beyond it.
     */
    private Position resumeAfterLoss(String queue, Position at, Loss loss) {
        warnOfLoss(queue, loss, at);
        Map<String, Long> ttls = attachQueues(List.of(queue), Map.of());
        if (ttls.isEmpty()) {
            return null;
        }
        addToKeepAlive(ttls);
        if (!options.subscription().isEmpty()) {
            // The positions of the expired queue are gone.
            store.subscribe(Map.of(queue, OffsetBound.EARLIEST), options.subscription());
        }
        findSkippedIds(List.of(queue));
        QueueState state = store.states(Map.of(queue, -1L)).get(queue);
        return state.exists()
                ? new Position(
                        state.born(),
                        state.floor(),
                        "",
                        state.floor(),
                        at.lost() + Math.max(1, loss.ids()))
                : null;
    }

    /** Return the other holder of a queue's lease; empty when no living holder is known. */
    private String otherHolder(String queue) {
        String holder = token.isEmpty()
                ? ""
                : store.holders(List.of(queue), options.subscription()).get(queue);
        return holder.equals(token)
                        || siblings.isSiblingToken(holder)
                        || LeaseHolderToken.isDead(holder)
                ? ""
                : holder;
    }

    private BusException lossError(String queue, Loss loss, Position at) {
        String holder = otherHolder(queue);
        // A second driver of this query has read on; nothing is lost.
        if (!holder.isEmpty()) {
            return QueueReaderLeases.busyError(store, queue, holder, options.subscription());
        }
        boolean acked = at != null
                && loss.kind().equals("removed")
                && store.ackedUpTo(queue, options.subscription()) >= at.last() + loss.ids();
        return store.lossError(
                queue,
                acked ? new Loss("acknowledged", loss.expected(), loss.found(), loss.ids()) : loss);
    }
}
