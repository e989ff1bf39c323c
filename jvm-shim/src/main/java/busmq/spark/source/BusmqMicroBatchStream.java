package busmq.spark.source;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.ErrorKind;
import busmq.spark.core.BatchPlanner;
import busmq.spark.core.OffsetCodec;
import busmq.spark.core.OffsetJson;
import busmq.spark.core.Position;
import busmq.spark.core.Range;
import busmq.spark.core.WorkSplitter;
import busmq.spark.options.ReadOptions;
import busmq.spark.redis.PushListeners;
import busmq.spark.redis.PushSignal;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadAllAvailable;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A streaming source: it plans micro-batches as the Python source does, and batches of real-time
 * mode, which have only a start.
 *
 * <p>Rule 1. A batch is a function of its offsets; nothing else survives a restart. Rule 2. Acks
 * come from {@code commit}, which Spark calls with the next batch, so an idle query plans one
 * without rows. The {@code start} of {@code latestOffset} is acknowledged where it is known to be
 * in the logs: with async progress tracking it may not be there yet. Rule 3. In real-time mode
 * {@code commit} comes with every batch, and only what it says is acknowledged. Rule 4. With async
 * progress tracking Spark calls {@code commit} on another thread, from Spark 4.3 on once more after
 * {@link #stop}. Calls run one at a time, and none has an effect after the stop.
 */
final class BusmqMicroBatchStream
        implements MicroBatchStream,
                SupportsTriggerAvailableNow,
                SupportsRealTimeMode,
                ReportsSourceMetrics {
    /**
     * The longest wait of an idle planning call for a push: about the pause of Spark between two
     * calls.
     */
    private static final long PUSH_WAIT_NS =
            TimeUnit.MILLISECONDS.toNanos(SharedPythonConstants.number("pushWaitMs"));
    /**
     * So many batches without rows in a row at most: Spark commits with the next batch; with async
     * progress tracking, with one of those that follow.
     */
    private static final int MAX_EMPTY_BATCHES = SharedPythonConstants.intNumber("maxEmptyBatches");
    /**
     * Batches in a row that were committed while the next was planned, until that counts as how
     * Spark logs. Async progress tracking plans on and commits when its logs are written: a single
     * batch may look the same by chance, and the first that does not settles it.
     */
    private static final int SYNCHRONOUS_ACK_COMMITS =
            SharedPythonConstants.intNumber("synchronousAckCommits");
    /** The folder prefix of checkpoints without a configured location. */
    private static final Pattern TEMPORARY_CHECKPOINT =
            Pattern.compile(".*/temporary-[0-9a-f-]{36}/sources/[^/]*");

    private static final Logger LOG = LoggerFactory.getLogger(BusmqMicroBatchStream.class);

    /**
     * The idle time after which a query plans a batch without rows, so that Spark commits the
     * previous one. Tests do not wait for it.
     */
    private static long emptyBatchAfterNs =
            TimeUnit.MILLISECONDS.toNanos(SharedPythonConstants.number("idleBeforeEmptyBatchMs"));

    private final ReadOptions options;
    private final StructType schema;
    private final QueueSelection queueNames;
    private final SelfJoinReaders siblings;
    private final ReaderAnnouncer announcer;
    private final IdTimeRecorder timeNotes = new IdTimeRecorder();
    private final QueryLagMeter queryLag = new QueryLagMeter();
    private final OffsetCodec offsetCodec = new OffsetCodec();
    private final boolean checkpointIsTemporary;
    private StreamQueueAcquirer streamQueues;
    private BatchPlanner planner;
    private RealTimePlan realTimePlan;
    private QueryAcks acks;
    private PushSignal signal;
    private boolean availableNow;
    private boolean realTime;
    // Whether the next start comes from the checkpoint itself: the first one of this process does.
    private boolean startIsDurable = true;
    // Batches that Spark committed while it planned the next; negative once one was not.
    private int synchronousBatches;
    private String lastCommitted = "";
    private String lastReadEnd = "";
    private Long idleSince;
    private String lastPlanned = "";
    private long nextPollNs;
    private QueueDiscoveryThread discovery;
    private boolean stopped;

    BusmqMicroBatchStream(ReadOptions options, StructType schema, String folder) {
        this.options = options;
        this.schema = schema;
        queueNames = new QueueSelection(options);
        siblings = SelfJoinReaders.register(folder, options, queueNames::includes);
        announcer = new ReaderAnnouncer(options.subscription(), siblings.token(), folder);
        checkpointIsTemporary = TEMPORARY_CHECKPOINT.matcher(folder).matches();
    }

    /**
     * Constant: Spark asks several times. The start of reading is in the end offset of the first
     * batch.
     */
    @Override
    public Offset initialOffset() {
        return new BusOffset(OffsetJson.INITIAL);
    }

    @Override
    public Offset deserializeOffset(String json) {
        return new BusOffset(json);
    }

    @Override
    public ReadLimit getDefaultReadLimit() {
        if (options.maxMessages() != null) {
            return ReadLimit.maxRows(options.maxMessages());
        }
        if (options.maxBytes() != null) {
            return ReadLimit.maxBytes(options.maxBytes());
        }
        return options.minMessages() != null
                ? ReadLimit.minRows(options.minMessages(), 1000 * options.triggerDelayS())
                : ReadLimit.allAvailable();
    }

    @Override
    public void prepareForTriggerAvailableNow() {
        availableNow = true;
    }

    @Override
    public void prepareForRealTimeMode() {
        realTime = true;
    }

    @Override
    public Offset latestOffset() {
        throw new UnsupportedOperationException("Spark asks with a start and a limit");
    }

    @Override
    public synchronized Offset latestOffset(Offset start, ReadLimit limit) {
        try {
            return planLatestOffset(start, limit);
        } catch (RuntimeException error) {
            announcer.noteError(error);
            throw error;
        }
    }

    private Offset planLatestOffset(Offset start, ReadLimit limit) {
        String at = start.json();
        Map<String, Position> begin = offsetCodec.decode(at);
        boolean isFirstBatch = at.equals(OffsetJson.INITIAL);
        acquireQueues(begin, Map.of(), isFirstBatch);
        announcer.noteFinished(begin);
        timeNotes.noteNewTimes(planner, streamQueues.store);
        acks.throwRefusal();
        if (realTime) {
            return start; // the end is where the readers are when the time is over
        }
        if (startIsDurable || synchronousBatches >= SYNCHRONOUS_ACK_COMMITS) {
            acks.ackNow(begin);
        }
        startIsDurable = false;
        if (!isFirstBatch && at.equals(lastPlanned) && !hasNews(begin)) {
            return offsetWithoutNews(start, begin);
        }
        boolean unlimited = limit instanceof ReadAllAvailable && !planner.availableNow();
        Map<String, Position> ends =
                planner.plan(begin, streamQueues.heldQueues(isFirstBatch), unlimited, nowMs());
        if (!isFirstBatch && ends.equals(begin)) {
            return offsetWithoutNews(start, begin);
        }
        if (SourceSchema.hasTimestamp(schema)) { // they must be noted before the rows are read
            timeNotes.noteNewTimes(planner, streamQueues.store, true);
        }
        lastPlanned = offsetCodec.encode(ends);
        announcer.notePlanned(begin, ends);
        idleSince = null;
        return new BusOffset(lastPlanned);
    }

    /**
     * Nothing is new: the same offset again; or one that differs, while messages of the last batch
     * wait for Spark's commit.
     */
    private Offset offsetWithoutNews(Offset at, Map<String, Position> begin) {
        lastPlanned = at.json();
        if (!acks.hasUnacked(begin)) {
            return at;
        }
        long now = System.nanoTime();
        int tail = OffsetJson.idleCount(lastPlanned);
        idleSince = idleSince == null ? Long.valueOf(now) : idleSince;
        // With availableNow the query ends once nothing is new.
        boolean soon = now - idleSince < emptyBatchAfterNs && !availableNow;
        if (soon || tail >= (availableNow ? 1 : MAX_EMPTY_BATCHES)) {
            return at;
        }
        idleSince = null;
        lastPlanned = OffsetJson.encode(begin, tail + 1);
        return new BusOffset(lastPlanned);
    }

    /**
     * Whether Spark has committed the batch before, now that it asks for the tasks of one that was
     * planned here.
     */
    private void countSynchronousCommits(String start, String end) {
        if (end.equals(lastPlanned)
                && !end.equals(lastReadEnd)
                && !start.equals(OffsetJson.INITIAL)
                && synchronousBatches >= 0) {
            synchronousBatches = lastCommitted.equals(start) ? synchronousBatches + 1 : -1;
        }
        lastReadEnd = end; // a batch that is read several times asks for its tasks each time
    }

    /**
     * Return the newest ids of the last planning, with the number of messages after the last batch
     * and their age in seconds.
     */
    @Override
    public synchronized Offset reportLatestOffset() {
        Map<String, Long> lastIds = planner == null ? Map.of() : planner.lastIds();
        if (lastIds.isEmpty() || stopped) {
            return null;
        }
        QueryLagMeter.Lag lag = queryLag.measure(
                lastPlanned.isEmpty() ? Map.of() : offsetCodec.decode(lastPlanned),
                lastIds,
                streamQueues.store);
        return new BusOffset(OffsetJson.encodeReport(lastIds, lag.messages(), lag.seconds()));
    }

    @Override
    public synchronized InputPartition[] planInputPartitions(Offset start, Offset end) {
        Map<String, Position> begin = offsetCodec.decode(start.json());
        Map<String, Position> goal = offsetCodec.decode(end.json());
        Map<String, Position> all = new HashMap<>(begin);
        all.putAll(goal);
        Map<String, Long> done = new HashMap<>();
        goal.forEach((queue, position) ->
                done.put(queue, OffsetJson.lastIdBeforeBatch(begin.get(queue), position)));
        acquireQueues(all, done, start.json().equals(OffsetJson.INITIAL));
        List<String> unseen = goal.keySet().stream()
                .filter(queue -> isPlannedWithoutCheckpoint(begin.get(queue), goal.get(queue)))
                .toList();
        streamQueues.findLosses(unseen, begin).forEach((queue, loss) -> {
            if (loss != null) { // its start is the oldest message that was stored then
                streamQueues.warnOfLoss(queue, loss, begin.get(queue));
                done.put(queue, goal.get(queue).start());
            }
        });
        // The first start belonged to a batch that is repeated; later starts are durable.
        startIsDurable = false;
        countSynchronousCommits(start.json(), end.json());
        lastPlanned = end.json();
        Map<String, Integer> servers = streamQueues.store.locate(goal.keySet());
        List<Range> ranges = new ArrayList<>();
        goal.forEach((queue, position) -> {
            if (done.get(queue) < position.last()) {
                ranges.add(new Range(
                        queue,
                        position.born(),
                        done.get(queue) + 1,
                        position.last(),
                        servers.get(queue)));
            }
        });
        List<Range> wanted = WorkSplitter.rangesWithout(ranges, streamQueues.skipped());
        return WorkSplitter.tasks(wanted, options.minPartitions(), options.maxPerPartition())
                .stream()
                .map(part -> RangePartition.of(part, goal))
                .toArray(InputPartition[]::new);
    }

    /**
     * Whether {@code end} was planned without the position before it, as Python before Spark 4.2
     * plans the first batch of a process.
     */
    private static boolean isPlannedWithoutCheckpoint(Position before, Position end) {
        return before != null
                && end.start() != null
                && !end.equals(before)
                && end.lost() <= before.lost();
    }

    /**
     * A batch of real-time mode: it begins at {@code start} and ends when its time is over. New
     * queues that match the pattern enter here.
     */
    @Override
    public synchronized InputPartition[] planInputPartitions(Offset start) {
        Map<String, Position> begin = offsetCodec.decode(start.json());
        boolean isFirstBatch = start.json().equals(OffsetJson.INITIAL);
        acquireQueues(begin, Map.of(), isFirstBatch);
        acks.throwRefusal();
        Map<String, Position> entries =
                planner.entries(begin, streamQueues.heldQueues(isFirstBatch));
        Set<String> shared = siblings.findSharedLives(
                entries.values().stream().map(Position::born).toList());
        return realTimePlan.partitions(
                entries,
                begin,
                streamQueues.store.locate(streamQueues.queues()),
                isFirstBatch,
                shared,
                streamQueues.skipped());
    }

    @Override
    public synchronized Offset mergeOffsets(PartitionOffset[] offsets) {
        Map<String, Position> ends = realTimePlan.endPositions(offsets);
        ends.keySet()
                .forEach(queue -> streamQueues.store.setOwnListeners(
                        queue, realTimePlan.executorsOf(queue).size()));
        return new BusOffset(offsetCodec.encode(ends));
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new ReaderFactory(options, schema);
    }

    @Override
    public synchronized void commit(Offset end) {
        if (stopped) {
            return; // the next run begins with it
        }
        Map<String, Position> done = offsetCodec.decode(end.json());
        lastCommitted = end.json();
        acquireQueues(done, Map.of(), false);
        announcer.noteCommitted(done);
        if (realTime) {
            acks.ackInThread(done);
        } else {
            acks.ackNow(done);
        }
    }

    /**
     * Return the metrics of the query's progress: the number of messages after the offset, their
     * queues, and the age in seconds of the oldest. In real-time mode also the milliseconds in
     * which a queue had no reader between the previous batch and this one.
     */
    @Override
    public synchronized Map<String, String> metrics(Optional<Offset> latest) {
        if (streamQueues == null || stopped || latest.isEmpty()) {
            return Map.of();
        }
        try {
            Map<String, Long> lastIds = realTime
                    ? streamQueues.store.counters(streamQueues.queues())
                    : planner.lastIds();
            QueryLagMeter.Lag lag = queryLag.measure(
                    offsetCodec.decode(latest.get().json()), lastIds, streamQueues.store);
            Map<String, String> found = new HashMap<>(Map.of(
                    "lag",
                    String.valueOf(lag.messages()),
                    "queues",
                    String.valueOf(streamQueues.queues().size())));
            if (lag.seconds() != null) {
                found.put("lag_s", String.valueOf(lag.seconds()));
            }
            if (realTimePlan.gapMs() != null) {
                found.put("gap_ms", String.valueOf(realTimePlan.gapMs()));
            }
            return found;
        } catch (BusException error) {
            return Map.of(); // the same error is thrown where the queues are read
        }
    }

    @Override
    public synchronized void stop() {
        stopped = true;
        siblings.close();
        if (discovery != null) {
            discovery.close();
        }
        if (streamQueues != null) {
            acks.close();
            streamQueues.close();
        }
        if (signal != null) {
            signal.close();
        }
    }

    /** Acquires the queues of the query: at the first call, and new ones later. */
    private void acquireQueues(
            Map<String, Position> known, Map<String, Long> done, boolean isFirstBatch) {
        if (stopped) {
            throw BusException.of(
                    ErrorKind.STATE,
                    "event",
                    "plan with",
                    "what",
                    "this stream",
                    "state",
                    "stopped",
                    "remedy",
                    "Start the query again");
        }
        if (streamQueues == null) {
            createPlannerAndAcks(known.keySet());
        }
        streamQueues.raiseIfTaken();
        Collection<String> wanted = options.subscribe();
        if (!queueNames.areNamedOneByOne()) {
            // A queue of the checkpoint that does not exist any more is not discovered, and its
            // loss must be noticed.
            Set<String> found = new LinkedHashSet<>(known.keySet());
            found.removeIf(
                    queue -> streamQueues.queues().contains(queue) || !queueNames.includes(queue));
            found.addAll(discoverQueues());
            wanted = found;
        }
        if (streamQueues.acquire(wanted, known, done, isFirstBatch) && !realTime) {
            if (signal != null) {
                signal.close();
            }
            signal = PushListeners.subscribe(
                    options.redis(), streamQueues.store.locate(streamQueues.queues()));
        }
    }

    /**
     * The queues that are not named one by one: looked for here at the first call, so that it
     * misses none; then beside the planning.
     */
    private Collection<String> discoverQueues() {
        if (discovery != null) {
            return discovery.takeFoundQueues();
        }
        Collection<String> first = queueNames.findQueues(streamQueues.store, () -> {}, true);
        discovery = new QueueDiscoveryThread(
                options.redis(), (store, pace) -> queueNames.findQueues(store, pace, true));
        if (!availableNow) { // what comes after its start is not available now
            discovery.start();
        }
        return first;
    }

    private void createPlannerAndAcks(Set<String> known) {
        streamQueues = new StreamQueueAcquirer(options, siblings, announcer::announcement);
        planner = new BatchPlanner(options, streamQueues);
        realTimePlan = new RealTimePlan(options);
        acks = new QueryAcks(options, streamQueues);
        if (availableNow) {
            planner.prepareForAvailableNow();
        }
        if (!known.isEmpty()) {
            warnQueuesDifferFromCheckpoint(known);
        }
        if (checkpointIsTemporary && options.ack().equals("commit")) {
            LOG.warn("this query has no checkpointLocation, so it never goes on where it ends, but"
                    + " it acknowledges: what it has read leaves its queues. Set ack=none to"
                    + " look without removing anything, or checkpointLocation to go on after a"
                    + " restart");
        }
    }

    /** A warning when the options name other queues than the checkpoint. */
    private void warnQueuesDifferFromCheckpoint(Set<String> known) {
        List<String> dropped =
                known.stream().filter(queue -> !queueNames.includes(queue)).toList();
        List<String> added = options.subscribe().stream()
                .filter(queue -> !known.contains(queue))
                .toList();
        if (!dropped.isEmpty() || !added.isEmpty()) {
            LOG.warn(
                    "the checkpoint is of other queues than the options name: dropped {}, added"
                        + " {}. This query neither reads nor acknowledges the former, and reads"
                        + " the latter from their oldest stored message on. If the checkpoint is"
                        + " another query's, stop this one and give it its own",
                    dropped.isEmpty() ? "none" : String.join(", ", dropped),
                    added.isEmpty() ? "none" : String.join(", ", added));
        }
    }

    /**
     * Whether planning may find anything beyond {@code begin}; the cheap answer of an idle query,
     * at most one small command per poll.
     */
    private boolean hasNews(Map<String, Position> begin) {
        if (planner.hasMore(begin, streamQueues.heldQueues(false), nowMs())) {
            return true;
        }
        // after a push a planning costs no more than the question
        boolean woken =
                awaitPush(Math.max(0, Math.min(PUSH_WAIT_NS, nextPollNs - System.nanoTime())));
        if (!woken && System.nanoTime() < nextPollNs) {
            return false;
        }
        nextPollNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(options.idlePollMs());
        return woken || planner.hasNewIds(streamQueues.heldQueues(false));
    }

    private boolean awaitPush(long nanos) {
        try {
            return signal != null && signal.await(nanos);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt(); // the query is being stopped, and will notice
            return false;
        }
    }

    private static long nowMs() {
        return TimeUnit.NANOSECONDS.toMillis(System.nanoTime());
    }

    /** Spark shows it as the name of a source, in the progress of a query. */
    @Override
    public String toString() {
        return "busmq[engine=java " + options.describeQueues() + "]";
    }
}
