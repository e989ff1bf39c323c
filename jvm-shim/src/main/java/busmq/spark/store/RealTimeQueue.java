package busmq.spark.store;

import busmq.spark.BusException;
import busmq.spark.core.Loss;
import busmq.spark.core.Fingerprint;
import busmq.spark.core.Position;
import busmq.spark.core.QueueKeys;
import busmq.spark.core.QueueState;
import busmq.spark.redis.Call;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One queue that is followed as messages come. Nothing is removed.
 *
 * <p>Every window begins with the message read last and ends with the incarnation: so a Redis that lost its tail in a fail-over and gave the ids
 * to other messages is noticed before one of them is handed out. Whatever does not fit leads to {@link #check}.
 */
public final class RealTimeQueue {
    /** A longer message is not read twice: its fingerprint is asked for instead. */
    private static final int SHORT = 1024;
    /** A list with a hole looks like one whose head moves; so often it may have moved. */
    private static final int MISSES = 2;
    /** After a pause the number and size of the waiting messages are unknown: so many are requested, and then a multiple of what came. */
    private static final int FEW = 8;
    private static final long PAUSE_NS = 100_000_000;
    private static final Logger LOG = LoggerFactory.getLogger(RealTimeQueue.class);

    private final ReadStore store;
    private final QueueKeys keys;
    private final String queue;
    private final Position entry;
    private final boolean entered;
    private final boolean strict;
    private ReplyWindows windows;
    private long need;
    private long head;
    private byte[] last;
    private long skipped;
    private long resumed;
    private int misses;
    private long came;
    private long cameAt;
    private boolean checked;
    private boolean full;
    private boolean over;
    private final boolean timed;
    private boolean noting = true;
    private TimesOfIds times = TimesOfIds.NONE;

    /**
     * {@code entered}: the queue enters the query at {@code entry}. {@code strict}: throw when messages are gone; else go on after them. {@code timed}:
     * messages have their time.
     */
    public RealTimeQueue(ReadStore store, String queue, Position entry, boolean entered, boolean strict, boolean timed) {
        this.timed = timed;
        this.store = store;
        this.queue = queue;
        this.entry = entry;
        this.entered = entered;
        this.strict = strict;
        keys = store.keys(queue);
        need = entry.last() + 1;
    }

    public String queue() {
        return queue;
    }

    /** The next id that is waited for. */
    public long need() {
        return need;
    }

    /** Where the queue stands when everything before the id {@code next} has been handed out, and {@code value} was the last of it (null: nothing). */
    public Position position(long next, byte[] value) {
        if (value == null && skipped == 0) {
            return entry;
        }
        Long start = skipped > 0 ? Long.valueOf(resumed) : entered ? entry.start() : null;
        return new Position(entry.born(), next - 1, value == null ? "" : Fingerprint.of(value), start, entry.lost() + skipped);
    }

    /** What came since; null when there is nothing. Throws the loss when something is gone. */
    public MessageRows take() {
        full = false;
        while (!over && (checked || check())) {
            // After a miss the mark has just been compared, and the message read last may be where it does not belong, or gone.
            boolean overlap = misses == 0 && last != null && last.length <= SHORT && need > head;
            long from = overlap ? need - 1 : need;
            long rows = windows.countNoted(from, Math.min(windows.rows(), most()) + need - from);
            Call ask = windows.call(from, from - head, rows);
            List<Object> replies = ask(ask, from, rows);
            List<Object> all = ReadStore.list(replies.get(0));
            List<Object> pairs = misses > MISSES ? run(all) : all;
            if (sound(replies, pairs, from)) {
                windows.learn(ValueSizes.of(ReadStore.list(replies.get(1)).get(1)));
                MessageRows found = taken(pairs, (int) (need - from), pairs.size() < all.size() || ask.script() != null ? 0 : rows);
                times = timed && found != null ? timesOf(found, ReadStore.list(replies.get(replies.size() - 1))) : TimesOfIds.NONE;
                return found;
            }
            misses++;
            checked = false;
        }
        return null;
    }

    /** Whether the last {@link #take} found as much as one reply may hold, so that there is more right now. */
    public boolean full() {
        return full;
    }

    /** Compares with what Redis has now. True when there is something to take; throws the loss when something is gone. */
    public boolean check() {
        if (over) {
            return false;
        }
        Call state = Call.script("state", List.of(keys.metadata(), keys.messages(), keys.msgid()), need - 1);
        Call probe = Call.script("probe", List.of(keys.metadata(), keys.messages()), need, ReplyWindows.DEEP);
        List<Object> replies = store.linkOf(queue).runAll(windows == null ? List.of(state, probe) : List.of(state));
        QueueState now = QueueState.of(queue, ReadStore.list(replies.get(0)), 0);
        String mark = last != null ? Fingerprint.of(last) : need - 1 == entry.last() ? entry.mark() : "";
        Loss loss = Loss.between(new Position(entry.born(), need - 1, mark), now);
        head = now.count() > 0 ? now.oldest() : now.lastId() + 1;
        if (loss == null && misses > MISSES && now.lastId() >= need) {
            loss = hole(now);
        }
        if (loss != null) {
            passOver(loss);
        }
        if (windows == null) {
            List<Object> found = ReadStore.list(replies.get(1));
            windows = new ReplyWindows(keys, (Long) found.get(2), ValueSizes.of(found.get(3)), need - head >= ReplyWindows.DEEP);
        }
        checked = true;
        return !over && now.lastId() >= need;
    }

    private long most() {
        return System.nanoTime() - cameAt > PAUSE_NS ? FEW : Math.max(FEW, ReplyWindows.GROWTH * came);
    }

    /** The times of what the last {@link #take} found. */
    public TimesOfIds times() {
        return times;
    }

    /** Its times; the reply has those of the window, unless they are very many. */
    private TimesOfIds timesOf(MessageRows found, List<Object> reply) {
        TimesOfIds some = TimesOfIds.of(reply, entry.born());
        long until = found.first() + found.until() - found.from() - 1;
        boolean all = some.last() >= until || reply.size() < ReadStore.PAIRS_PER_CALL;
        return all ? some : store.times(queue, entry.born(), found.first(), until);
    }

    /** Asks for a window and what goes with it. Messages of peers get their time here, unless Redis lets us note none. */
    private List<Object> ask(Call window, long from, long rows) {
        try {
            return store.linkOf(queue).runAll(calls(window, from, rows));
        } catch (BusException error) {
            if (!timed || !noting || !ReadStore.NO_NOTE.contains(error.kind())) {
                throw error;
            }
            noting = false;
            return store.linkOf(queue).runAll(calls(window, from, rows));
        }
    }

    private List<Call> calls(Call window, long from, long rows) {
        List<Call> all = new ArrayList<>(List.of(window, Call.command("HMGET", keys.metadata(), "born", "sizes")));
        if (last != null && last.length > SHORT) {
            all.add(Call.script("marks", List.of(keys.messages()), need - 1));
        }
        if (timed && noting) {
            all.add(ReadStore.noteCall(keys));
        }
        if (timed) {
            all.add(ReadStore.timesCall(keys, from, from + rows - 1));
        }
        return all;
    }

    /** Whether the window is of the life and the history we know, begins where it was asked to, and has no hole. */
    private boolean sound(List<Object> replies, List<Object> pairs, long from) {
        int count = pairs.size() / 2;
        Object born = ReadStore.list(replies.get(1)).get(0);
        if (born == null || !ReadStore.text(born).equals(entry.born())) {
            return false;
        }
        if (count == 0) {
            return from == need && from == head; // asked for from the head on, and the list is empty
        }
        if (MessageRows.id(pairs, 0) != from || MessageRows.id(pairs, count - 1) != from + count - 1) {
            return false;
        }
        if (last != null && last.length > SHORT) {
            String mark = ReadStore.text(ReadStore.list(replies.get(2)).get(0));
            return mark.isEmpty() || mark.equals(Fingerprint.of(last));
        }
        return from == need || Arrays.equals(last, (byte[]) pairs.get(1));
    }

    /** The messages before the first hole. */
    private static List<Object> run(List<Object> pairs) {
        int count = Math.min(1, pairs.size() / 2);
        while (count < pairs.size() / 2 && MessageRows.id(pairs, count) == MessageRows.id(pairs, count - 1) + 1) {
            count++;
        }
        return pairs.subList(0, 2 * count);
    }

    private MessageRows taken(List<Object> pairs, int from, long rows) {
        int count = pairs.size() / 2;
        misses = 0;
        if (count <= from) {
            return null;
        }
        came = count - from;
        cameAt = System.nanoTime();
        full = count >= rows;
        windows.took(pairs, full);
        MessageRows found = new MessageRows(queue, need, pairs, from, count);
        last = found.value(count - 1);
        need += count - from;
        return found;
    }

    /** The id is given, and not where it should be. Null when it is elsewhere in the list. */
    private Loss hole(QueueState now) {
        List<Object> place = ReadStore.list(store.linkOf(queue).run(Call.script("seek", List.of(keys.messages()), need)));
        boolean exact = (Long) place.get(1) == 1;
        long following = ReadStore.text(place.get(2)).isEmpty() ? now.lastId() + 1 : ReadStore.number(place.get(2));
        head = exact ? need - (Long) place.get(0) : following - (Long) place.get(0) - 1;
        return exact ? null : new Loss("removed", "ids from " + need + " on", "next stored id " + following, following - need);
    }

    private void passOver(Loss loss) {
        if (strict) {
            throw store.lossError(queue, loss);
        }
        LOG.warn("{}; going on from the oldest stored message", store.lossError(queue, loss).getMessage());
        if (loss.kind().equals("removed")) {
            need += loss.ids();
            resumed = need - 1;
            skipped += loss.ids();
            last = null;
            misses = 0;
        } else {
            over = true; // the next batch begins in what is there then, and counts
        }
    }
}
