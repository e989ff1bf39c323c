package busmq.spark.store;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import busmq.spark.core.MessageFingerprint;
import busmq.spark.core.Loss;
import busmq.spark.core.Position;
import busmq.spark.core.QueueKeys;
import busmq.spark.core.QueueState;
import busmq.spark.core.Range;
import busmq.spark.redis.RedisCall;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A queue whose messages are read as they are pushed. Nothing is removed.
 *
 * <p>Every window begins with the message read last and ends with the incarnation: so a Redis that
 * lost its newest writes in a fail-over, and gave the ids to other messages, is noticed before one
 * of them is handed out. Whatever does not fit leads to {@link #checkState}.
 */
public final class RealTimeQueue {
    /** A longer message is not read twice: its fingerprint is asked for instead. */
    private static final int SHORT_BYTES = 1024;
    /**
     * A list with a hole looks like one whose head was removed meanwhile; after more misses than
     * this a hole is looked for.
     */
    private static final int MISSES = 2;
    /**
     * After a pause the number and size of the waiting messages are unknown: so many are requested,
     * and then a multiple of what came.
     */
    private static final int FEW_ROWS = 8;

    private static final long PAUSE_NS = 100_000_000;
    private static final Logger LOG = LoggerFactory.getLogger(RealTimeQueue.class);

    private final ReadStore store;
    private final QueueKeys keys;
    private final String queue;
    private final Position entry;
    private final boolean startsAnew;
    private final boolean strict;
    private RangeReplySizer windows;
    private long nextId;
    private long headId;
    private byte[] lastValue;
    private long skippedIds;
    private long resumedAfter;
    private int misses;
    private long lastRows;
    private long lastRowsNs;
    private boolean stateIsChecked;
    private boolean lastReplyWasFull;
    private boolean lifeIsOver;
    private final boolean withTimes;
    private boolean mayNoteTimes = true;
    private TimesOfIds times = TimesOfIds.NONE;

    /**
     * {@code startsAnew}: the queue enters the query at {@code entry}. {@code strict}: throw when
     * messages are gone; else go on after them. {@code withTimes}: messages have their time.
     */
    public RealTimeQueue(
            ReadStore store,
            String queue,
            Position entry,
            boolean startsAnew,
            boolean strict,
            boolean withTimes) {
        this.withTimes = withTimes;
        this.store = store;
        this.queue = queue;
        this.entry = entry;
        this.startsAnew = startsAnew;
        this.strict = strict;
        keys = store.keys(queue);
        nextId = entry.last() + 1;
    }

    public String queue() {
        return queue;
    }

    /** The next id that is waited for. */
    public long nextId() {
        return nextId;
    }

    /**
     * Return the position of the queue after all messages before the id {@code next}; {@code value}
     * is the last one (null: none).
     */
    public Position position(long next, byte[] value) {
        if (value == null && skippedIds == 0) {
            return entry;
        }
        Long start =
                skippedIds > 0 ? Long.valueOf(resumedAfter) : startsAnew ? entry.start() : null;
        return new Position(
                entry.born(),
                next - 1,
                value == null ? "" : MessageFingerprint.of(value),
                start,
                entry.lost() + skippedIds);
    }

    /**
     * Return the messages since the last call; null for none. Throws the loss when something is
     * gone.
     */
    public ConsecutiveMessages takeMessages() {
        lastReplyWasFull = false;
        while (!lifeIsOver && (stateIsChecked || checkState())) {
            // After a miss the mark has just been compared, and the message read last may be where
            // it does not belong, or gone.
            boolean overlap = misses == 0
                    && lastValue != null
                    && lastValue.length <= SHORT_BYTES
                    && nextId > headId;
            long from = overlap ? nextId - 1 : nextId;
            long rows =
                    windows.limitToNoted(from, Math.min(windows.rows(), maxRows()) + nextId - from);
            RedisCall ask = windows.windowCall(from, from - headId, rows);
            List<Object> replies = askWindow(ask, from, rows);
            List<Object> all = ReadStore.list(replies.get(0));
            List<Object> pairs = misses > MISSES ? rowsBeforeHole(all) : all;
            if (isExpectedWindow(replies, pairs, from)) {
                windows.setSizes(
                        ValueSizeStats.parse(ReadStore.list(replies.get(1)).get(1)));
                ConsecutiveMessages found = takeRows(
                        pairs,
                        (int) (nextId - from),
                        pairs.size() < all.size() || ask.script() != null ? 0 : rows);
                times = withTimes && found != null
                        ? timesOf(found, ReadStore.list(replies.get(replies.size() - 1)))
                        : TimesOfIds.NONE;
                return found;
            }
            misses++;
            stateIsChecked = false;
        }
        return null;
    }

    /**
     * Whether the last {@link #takeMessages} found as much as one reply may hold, so that there is
     * more right now.
     */
    public boolean lastReplyWasFull() {
        return lastReplyWasFull;
    }

    /**
     * Compares with what Redis has now. True when there is something to take; throws the loss when
     * something is gone.
     */
    public boolean checkState() {
        if (lifeIsOver) {
            return false;
        }
        RedisCall state = RedisCall.script(
                "state", List.of(keys.metadata(), keys.messages(), keys.msgid()), nextId - 1);
        RedisCall probe = RedisCall.script(
                "probe",
                List.of(keys.metadata(), keys.messages()),
                nextId,
                RangeReplySizer.DEEP_WINDOW_MESSAGES);
        List<Object> replies = store.linkOf(queue)
                .runAll(windows == null ? List.of(state, probe) : List.of(state));
        QueueState now = QueueState.of(queue, ReadStore.list(replies.get(0)), 0);
        String mark = lastValue != null
                ? MessageFingerprint.of(lastValue)
                : nextId - 1 == entry.last() ? entry.mark() : "";
        Loss loss = Loss.between(new Position(entry.born(), nextId - 1, mark), now);
        headId = now.count() > 0 ? now.oldest() : now.lastId() + 1;
        if (loss == null && misses > MISSES && now.lastId() >= nextId) {
            loss = findHole(now);
        }
        if (loss != null) {
            skipLoss(loss);
        }
        if (windows == null) {
            List<Object> found = ReadStore.list(replies.get(1));
            windows = new RangeReplySizer(
                    keys,
                    (Long) found.get(2),
                    ValueSizeStats.parse(found.get(3)),
                    nextId - headId >= RangeReplySizer.DEEP_WINDOW_MESSAGES);
        }
        stateIsChecked = true;
        return !lifeIsOver && now.lastId() >= nextId;
    }

    private long maxRows() {
        return System.nanoTime() - lastRowsNs > PAUSE_NS
                ? FEW_ROWS
                : Math.max(FEW_ROWS, RangeReplySizer.REPLY_GROWTH_FACTOR * lastRows);
    }

    /** The times of what the last {@link #takeMessages} found. */
    public TimesOfIds times() {
        return times;
    }

    /** Its times; the reply has those of the window, unless they are very many. */
    private TimesOfIds timesOf(ConsecutiveMessages found, List<Object> reply) {
        TimesOfIds some = TimesOfIds.of(reply, entry.born());
        long until = found.first() + found.until() - found.from() - 1;
        boolean all = some.lastId() >= until || reply.size() < ReadStore.PAIRS_PER_CALL;
        if (all) {
            return some;
        }
        Range range = new Range(
                queue,
                entry.born(),
                found.first(),
                until,
                store.locate(List.of(queue)).get(queue));
        return store.times(List.of(range)).get(range);
    }

    /**
     * Asks for a window and what goes with it. Messages of peers get their time here, unless Redis
     * lets us note none.
     */
    private List<Object> askWindow(RedisCall window, long from, long rows) {
        try {
            return store.linkOf(queue).runAll(windowCalls(window, from, rows));
        } catch (BusException error) {
            if (!withTimes || !mayNoteTimes || !ReadStore.NOTE_REFUSALS.contains(error.kind())) {
                throw error;
            }
            mayNoteTimes = false;
            List<Object> found = store.linkOf(queue).runAll(windowCalls(window, from, rows));
            mayNoteTimes = error.kind() == ErrorKind.WRITES_PAUSED; // which passes
            return found;
        }
    }

    private List<RedisCall> windowCalls(RedisCall window, long from, long rows) {
        List<RedisCall> all = new ArrayList<>(
                List.of(window, RedisCall.command("HMGET", keys.metadata(), "born", "sizes")));
        if (lastValue != null && lastValue.length > SHORT_BYTES) {
            all.add(RedisCall.script("marks", List.of(keys.messages()), nextId - 1));
        }
        if (withTimes && mayNoteTimes) {
            all.add(ReadStore.noteCall(keys));
        }
        if (withTimes) {
            all.add(ReadStore.timesCall(keys, from, from + rows - 1, ReadStore.PAIRS_PER_CALL));
        }
        return all;
    }

    /**
     * Whether the window is of the life and the history we know, begins where it was asked to, and
     * has no hole.
     */
    private boolean isExpectedWindow(List<Object> replies, List<Object> pairs, long from) {
        int count = pairs.size() / 2;
        Object born = ReadStore.list(replies.get(1)).get(0);
        if (born == null || !ReadStore.text(born).equals(entry.born())) {
            return false;
        }
        if (count == 0) {
            // The reply began at the head of the list, and the list is empty.
            return from == nextId && from == headId;
        }
        if (ConsecutiveMessages.id(pairs, 0) != from
                || ConsecutiveMessages.id(pairs, count - 1) != from + count - 1) {
            return false;
        }
        if (lastValue != null && lastValue.length > SHORT_BYTES) {
            String mark = ReadStore.text(ReadStore.list(replies.get(2)).get(0));
            return mark.isEmpty() || mark.equals(MessageFingerprint.of(lastValue));
        }
        return from == nextId || Arrays.equals(lastValue, (byte[]) pairs.get(1));
    }

    /** The messages before the first hole. */
    private static List<Object> rowsBeforeHole(List<Object> pairs) {
        int count = Math.min(1, pairs.size() / 2);
        while (count < pairs.size() / 2
                && ConsecutiveMessages.id(pairs, count)
                        == ConsecutiveMessages.id(pairs, count - 1) + 1) {
            count++;
        }
        return pairs.subList(0, 2 * count);
    }

    private ConsecutiveMessages takeRows(List<Object> pairs, int from, long rows) {
        int count = pairs.size() / 2;
        misses = 0;
        if (count <= from) {
            return null;
        }
        lastRows = count - from;
        lastRowsNs = System.nanoTime();
        lastReplyWasFull = count >= rows;
        windows.adaptTo(pairs, lastReplyWasFull);
        ConsecutiveMessages found = new ConsecutiveMessages(queue, nextId, pairs, from, count);
        lastValue = found.value(count - 1);
        nextId += count - from;
        return found;
    }

    /** The id is given, and not where it should be. Null when it is elsewhere in the list. */
    private Loss findHole(QueueState now) {
        List<Object> place = ReadStore.list(store.linkOf(queue)
                .run(RedisCall.script("seek", List.of(keys.messages()), nextId)));
        boolean exact = (Long) place.get(1) == 1;
        long following = ReadStore.text(place.get(2)).isEmpty()
                ? now.lastId() + 1
                : ReadStore.number(place.get(2));
        headId = exact ? nextId - (Long) place.get(0) : following - (Long) place.get(0) - 1;
        return exact
                ? null
                : new Loss(
                        "removed",
                        "ids from " + nextId + " on",
                        "next stored id " + following,
                        following - nextId);
    }

    private void skipLoss(Loss loss) {
        if (strict) {
            throw store.lossError(queue, loss);
        }
        LOG.warn(
                "{}; going on from the oldest stored message",
                store.lossError(queue, loss).getMessage());
        if (loss.kind().equals("removed")) {
            nextId += loss.ids();
            resumedAfter = nextId - 1;
            skippedIds += loss.ids();
            lastValue = null;
            misses = 0;
        } else {
            lifeIsOver = true; // the next batch begins in what is there then, and counts
        }
    }
}
