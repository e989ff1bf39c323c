package busmq.spark.store;

import busmq.spark.BusException;
import busmq.spark.Contract;
import busmq.spark.ErrorKind;
import busmq.spark.PyText;
import busmq.spark.core.QueueKeys;
import busmq.spark.core.Range;
import busmq.spark.redis.Call;
import busmq.spark.redis.Link;
import java.util.ArrayList;
import java.util.List;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reads the ids of a range in order, each once, and removes nothing: a pure function of the range while its messages are stored.
 *
 * <p>The list holds id, value, id, value …, and ids have no holes, so a message's place follows from the id at the head. Every reply carries the
 * ids: when they are not those expected (an ack moved the head meanwhile), the place is computed anew.
 */
public final class RangeReader {
    private static final int MISSES = Contract.whole("misses");
    private static final Logger LOG = LoggerFactory.getLogger(RangeReader.class);

    private final ReadStore store;
    private final Link link;
    private final QueueKeys keys;
    private final Range part;
    private final boolean strict;
    private ReplyWindows windows;
    private final Companion companion;
    private boolean begun;
    private boolean ended;
    private long need;
    private long head;
    private int misses;

    /** A question about the queue that travels with the first call, and once more behind the last rows; it may throw. */
    public interface Companion {
        Call call(String queue);

        void answered(String queue, Object reply);
    }

    /** {@code strict}: throw when messages are gone; else what is left of the range follows. */
    public RangeReader(ReadStore store, Range part, boolean strict) {
        this(store, part, strict, null);
    }

    /** {@code companion}: null for none. */
    public RangeReader(ReadStore store, Range part, boolean strict, Companion companion) {
        this.companion = companion;
        this.store = store;
        this.part = part;
        this.strict = strict;
        store.setServer(part.queue(), part.server());
        link = store.link(part.server());
        keys = store.keys(part.queue());
        need = part.first();
    }

    /** The next messages; null at the end. Throws the loss when some are gone. */
    public MessageRows next() {
        try {
            while (need <= part.last()) {
                if (windows == null && !find()) {
                    break;
                }
                MessageRows found = windows == null ? null : readWindow();
                if (found != null) {
                    return found;
                }
            }
        } catch (BusException error) {
            boolean gone = error.kind() == ErrorKind.QUEUE_EXPIRED || error.kind() == ErrorKind.QUEUE_RECREATED;
            if (strict || !gone) {
                throw error;
            }
            LOG.warn("{}; skipped", error.getMessage()); // nothing of that life is left; the next batch begins in the new one, and counts
        }
        need = part.last() + 1;
        return null;
    }

    /** Whether the companion was answered behind the last row of the range. */
    public boolean endsAnswered() {
        return ended;
    }

    /** Where the next id is; false when nothing of the range is left. May pass over ids that are gone, and must then be called again. */
    private boolean find() {
        Call probe = Call.script("probe", List.of(keys.metadata(), keys.messages()), need, ReplyWindows.DEEP);
        boolean first = companion != null && !begun;
        begun = true;
        List<Object> replies = link.runAll(first ? List.of(companion.call(part.queue()), probe) : List.of(probe));
        if (first) {
            companion.answered(part.queue(), replies.get(0));
        }
        List<Object> reply = ReadStore.list(replies.get(replies.size() - 1));
        checkLife(reply.get(0));
        long oldest = ReadStore.text(reply.get(1)).isEmpty() ? 0 : ReadStore.number(reply.get(1));
        long found = oldest;
        if (misses > MISSES && oldest > 0 && oldest <= need) { // the head stands still and yet the id is not where it should be: the list has a hole
            List<Object> place = ReadStore.list(link.run(Call.script("seek", List.of(keys.messages()), need)));
            boolean exact = (Long) place.get(1) == 1;
            long following = ReadStore.text(place.get(2)).isEmpty() ? 0 : ReadStore.number(place.get(2));
            found = exact ? need : following;
            oldest = exact ? need - (Long) place.get(0) : following - (Long) place.get(0) - 1;
        }
        if (found == 0 || found > need) {
            skip(found);
            if (found == 0) {
                return false;
            }
            need = found;
            return true;
        }
        misses++;
        head = oldest;
        windows = new ReplyWindows(keys, (Long) reply.get(2), ValueSizes.of(reply.get(3)), need - head >= ReplyWindows.DEEP);
        return true;
    }

    /** One reply; null when the place has to be found anew. */
    private MessageRows readWindow() {
        Call ask = windows.call(need, Math.max(0, need - head), Math.min(windows.rows(), part.last() - need + 1));
        // The incarnation travels after the window: if it still holds there, the window was of the same life.
        List<Call> calls = new ArrayList<>(List.of(ask, Call.command("HGET", keys.metadata(), "born")));
        boolean last = companion != null && strict && part.last() - need < windows.rows();
        if (last) {
            calls.add(companion.call(part.queue()));
        }
        List<Object> replies = link.runAll(calls);
        List<Object> pairs = ReadStore.list(replies.get(0));
        checkLife(replies.get(1));
        int count = pairs.size() / 2;
        long first = count == 0 ? 0 : MessageRows.id(pairs, 0);
        if (count == 0 || first > need || MessageRows.id(pairs, count - 1) < need) {
            windows = null;
            return null;
        }
        int from = (int) (need - first);
        int until = (int) Math.min(count, part.last() - first + 1);
        if (MessageRows.id(pairs, count - 1) - first != count - 1) {
            return holed(pairs);
        }
        MessageRows found = new MessageRows(part.queue(), need, pairs, from, until);
        windows.took(pairs, true);
        need = first + until;
        misses = 0;
        if (last && need > part.last()) {
            companion.answered(part.queue(), replies.get(2));
            ended = true;
        }
        return found;
    }

    /** What comes before the hole; the ids in it are looked for once more. */
    private MessageRows holed(List<Object> pairs) {
        windows = null;
        misses = MISSES + 1;
        int from = 0;
        while (MessageRows.id(pairs, from) < need) {
            from++;
        }
        int until = from;
        while (until < pairs.size() / 2 && MessageRows.id(pairs, until) == need + until - from && MessageRows.id(pairs, until) <= part.last()) {
            until++;
        }
        MessageRows found = until > from ? new MessageRows(part.queue(), need, pairs, from, until) : null;
        need += until - from;
        return found;
    }

    private void skip(long found) {
        if (strict) {
            throw store.removedError(part.queue(), need, part.last(), found);
        }
        LOG.warn("queue {}: ids {}..{} are gone and were skipped", PyText.repr(part.queue()), need,
                found > 0 ? Math.min(part.last(), found - 1) : part.last());
    }

    private void checkLife(Object reply) {
        String born = reply == null ? "" : ReadStore.text(reply);
        if (born.equals(part.born())) {
            return;
        }
        String expected = "ids " + need + ".." + part.last() + " of incarnation " + part.born();
        if (born.isEmpty()) {
            throw BusException.of(ErrorKind.QUEUE_EXPIRED, "queue", part.queue(), "expected", expected,
                    "found", "no such queue, or one that no reader has named");
        }
        throw BusException.of(ErrorKind.QUEUE_RECREATED, "queue", part.queue(), "expected", expected, "found", "incarnation " + born);
    }
}
