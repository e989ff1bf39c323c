package busmq.spark.store;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.ErrorKind;
import busmq.spark.PyText;
import busmq.spark.core.QueueKeys;
import busmq.spark.core.Range;
import busmq.spark.redis.RedisCall;
import busmq.spark.redis.RedisLink;
import java.util.ArrayList;
import java.util.List;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reads the ids of a range in order, each once, and removes nothing: a pure function of the range
 * while its messages are stored.
 *
 * <p>The list holds id, value, id, value …, and ids have no holes, so a message's place follows
 * from the id at the head. Every reply carries the ids: when they are not those expected (an ack
 * moved the head meanwhile), the place is computed anew.
 */
public final class RangeReader {
    private static final int MAX_MISSES = SharedPythonConstants.intNumber("maxMisses");
    private static final Logger LOG = LoggerFactory.getLogger(RangeReader.class);

    private final ReadStore store;
    private final RedisLink link;
    private final QueueKeys keys;
    private final Range range;
    private final boolean strict;
    private RangeReplySizer windows;
    private final QueueCheck queueCheck;
    private boolean firstCallSent;
    private boolean checkedAtEnd;
    private long nextId;
    private long headId;
    private int misses;

    /**
     * A check of the queue that travels with the first call, and once more after the last rows; it
     * may throw.
     */
    public interface QueueCheck {
        RedisCall call(String queue);

        void checkReply(String queue, Object reply);
    }

    /** {@code strict}: throw when messages are gone; else what is left of the range follows. */
    public RangeReader(ReadStore store, Range range, boolean strict) {
        this(store, range, strict, null);
    }

    /** {@code queueCheck}: null for none. */
    public RangeReader(ReadStore store, Range range, boolean strict, QueueCheck queueCheck) {
        this.queueCheck = queueCheck;
        this.store = store;
        this.range = range;
        this.strict = strict;
        store.setServer(range.queue(), range.server());
        link = store.link(range.server());
        keys = store.keys(range.queue());
        nextId = range.first();
    }

    /** The next messages; null at the end. Throws the loss when some are gone. */
    public ConsecutiveMessages next() {
        try {
            while (nextId <= range.last()) {
                if (windows == null && !locateNextId()) {
                    break;
                }
                ConsecutiveMessages found = windows == null ? null : readWindow();
                if (found != null) {
                    return found;
                }
            }
        } catch (BusException error) {
            boolean gone = error.kind() == ErrorKind.QUEUE_EXPIRED
                    || error.kind() == ErrorKind.QUEUE_RECREATED;
            if (strict || !gone) {
                throw error;
            }
            // Nothing of that life is left; the next batch begins in the new one, and counts.
            LOG.warn("{}; skipped", error.getMessage());
        }
        nextId = range.last() + 1;
        return null;
    }

    /** Whether the queue check was answered after the last row of the range. */
    public boolean isCheckedAtEnd() {
        return checkedAtEnd;
    }

    /**
     * Find the index of the next id; false when the range is at its end. May pass over ids that are
     * gone, and must then be called again.
     */
    private boolean locateNextId() {
        RedisCall probe = RedisCall.script(
                "probe",
                List.of(keys.metadata(), keys.messages()),
                nextId,
                RangeReplySizer.DEEP_WINDOW_MESSAGES);
        boolean first = queueCheck != null && !firstCallSent;
        firstCallSent = true;
        List<Object> replies = link.runAll(
                first ? List.of(queueCheck.call(range.queue()), probe) : List.of(probe));
        if (first) {
            queueCheck.checkReply(range.queue(), replies.get(0));
        }
        List<Object> reply = ReadStore.list(replies.get(replies.size() - 1));
        checkSameLife(reply.get(0));
        long oldest = ReadStore.text(reply.get(1)).isEmpty() ? 0 : ReadStore.number(reply.get(1));
        long found = oldest;
        // the head stands still and yet the id is not where it should be: the list has a hole
        if (misses > MAX_MISSES && oldest > 0 && oldest <= nextId) {
            List<Object> place = ReadStore.list(
                    link.run(RedisCall.script("seek", List.of(keys.messages()), nextId)));
            boolean exact = (Long) place.get(1) == 1;
            long following =
                    ReadStore.text(place.get(2)).isEmpty() ? 0 : ReadStore.number(place.get(2));
            found = exact ? nextId : following;
            oldest = exact ? nextId - (Long) place.get(0) : following - (Long) place.get(0) - 1;
        }
        if (found == 0 || found > nextId) {
            reportMissingIds(found);
            if (found == 0) {
                return false;
            }
            nextId = found;
            return true;
        }
        misses++;
        headId = oldest;
        windows = new RangeReplySizer(
                keys,
                (Long) reply.get(2),
                ValueSizeStats.parse(reply.get(3)),
                nextId - headId >= RangeReplySizer.DEEP_WINDOW_MESSAGES);
        return true;
    }

    /** Read one reply; null when the index must be found anew. */
    private ConsecutiveMessages readWindow() {
        RedisCall ask = windows.windowCall(
                nextId,
                Math.max(0, nextId - headId),
                Math.min(windows.rows(), range.last() - nextId + 1));
        // The incarnation travels after the window: if it still holds there, the window was of the
        // same life.
        List<RedisCall> calls =
                new ArrayList<>(List.of(ask, RedisCall.command("HGET", keys.metadata(), "born")));
        boolean last = queueCheck != null && strict && range.last() - nextId < windows.rows();
        if (last) {
            calls.add(queueCheck.call(range.queue()));
        }
        List<Object> replies = link.runAll(calls);
        List<Object> pairs = ReadStore.list(replies.get(0));
        checkSameLife(replies.get(1));
        int count = pairs.size() / 2;
        long first = count == 0 ? 0 : ConsecutiveMessages.id(pairs, 0);
        if (count == 0 || first > nextId || ConsecutiveMessages.id(pairs, count - 1) < nextId) {
            windows = null;
            return null;
        }
        int from = (int) (nextId - first);
        int until = (int) Math.min(count, range.last() - first + 1);
        if (ConsecutiveMessages.id(pairs, count - 1) - first != count - 1) {
            return messagesBeforeHole(pairs);
        }
        ConsecutiveMessages found =
                new ConsecutiveMessages(range.queue(), nextId, pairs, from, until);
        windows.adaptTo(pairs, true);
        nextId = first + until;
        misses = 0;
        if (last && nextId > range.last()) {
            queueCheck.checkReply(range.queue(), replies.get(2));
            checkedAtEnd = true;
        }
        return found;
    }

    /** Return the rows before the hole; the reader looks for its ids once more. */
    private ConsecutiveMessages messagesBeforeHole(List<Object> pairs) {
        windows = null;
        misses = MAX_MISSES + 1;
        int from = 0;
        while (ConsecutiveMessages.id(pairs, from) < nextId) {
            from++;
        }
        int until = from;
        while (until < pairs.size() / 2
                && ConsecutiveMessages.id(pairs, until) == nextId + until - from
                && ConsecutiveMessages.id(pairs, until) <= range.last()) {
            until++;
        }
        ConsecutiveMessages found = until > from
                ? new ConsecutiveMessages(range.queue(), nextId, pairs, from, until)
                : null;
        nextId += until - from;
        return found;
    }

    private void reportMissingIds(long found) {
        if (strict) {
            throw store.removedError(range.queue(), nextId, range.last(), found);
        }
        LOG.warn(
                "queue {}: ids {}..{} are gone and were skipped",
                PyText.repr(range.queue()),
                nextId,
                found > 0 ? Math.min(range.last(), found - 1) : range.last());
    }

    private void checkSameLife(Object reply) {
        String born = reply == null ? "" : ReadStore.text(reply);
        if (born.equals(range.born())) {
            return;
        }
        String expected = "ids " + nextId + ".." + range.last() + " of incarnation " + range.born();
        if (born.isEmpty()) {
            throw BusException.of(
                    ErrorKind.QUEUE_EXPIRED,
                    "queue",
                    range.queue(),
                    "expected",
                    expected,
                    "found",
                    "no such queue, or one that no reader has named");
        }
        throw BusException.of(
                ErrorKind.QUEUE_RECREATED,
                "queue",
                range.queue(),
                "expected",
                expected,
                "found",
                "incarnation " + born);
    }
}
