package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.Contract;
import busmq.spark.ErrorKind;
import busmq.spark.PyText;
import busmq.spark.core.QueueKeys;
import busmq.spark.redis.Call;
import busmq.spark.store.ReadStore;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.function.Function;
import java.util.stream.Collectors;

/** The commit of a batch to one queue, call by call: {@code commit} in {@code core/sink.py}. Safe to repeat at any time, by any process. */
final class QueueCommit {
    /** What a call has found. */
    enum Status { OPEN, DONE, FULL, MISSING, OTHER }

    private static final int ROWS_TOGETHER = Contract.whole("rowsTogether");
    private static final int MOST_TOGETHER = Contract.whole("mostTogether");
    private static final String GIVE_UP = Contract.text("giveUp");

    private final QueueKeys keys;
    private final String sink;
    private final long batch;
    private final List<StagedList> staged;
    private final long since;
    private final String whole;
    private Status status = Status.OPEN;
    private SinkStore.Full full;
    private int nth;
    private long moved;

    /** {@code since}: progress of records that were made by runs with lower epochs counts for nothing. */
    QueueCommit(QueueKeys keys, String sink, long batch, List<StagedList> staged, long since) {
        this.keys = keys;
        this.sink = sink;
        this.batch = batch;
        this.staged = staged;
        this.since = since;
        this.whole = whole(staged);
    }

    /** The lists of each queue, in groups of queues that are committed together. */
    static List<List<List<StagedList>>> groups(List<StagedList> staged) {
        List<List<List<StagedList>>> found = new ArrayList<>();
        long room = 0;
        for (List<StagedList> parts : staged.stream().collect(Collectors.groupingBy(StagedList::queue, LinkedHashMap::new, Collectors.toList())).values()) {
            long rows = parts.stream().mapToLong(StagedList::rows).sum();
            if (found.isEmpty() || rows > room || found.get(found.size() - 1).size() == MOST_TOGETHER) {
                found.add(new ArrayList<>());
                room = ROWS_TOGETHER;
            }
            found.get(found.size() - 1).add(parts);
            room -= rows;
        }
        return found;
    }

    /** Commits beside each other, each with one call in a round trip: the lists of those that are not done. The first error is thrown last. */
    static List<List<StagedList>> together(List<QueueCommit> queues, Function<List<Call>, List<Object>> run) {
        List<BusException> errors = new ArrayList<>();
        for (List<QueueCommit> open = queues; !open.isEmpty(); open = open.stream().filter(QueueCommit::isOpen).toList()) {
            List<Object> replies = run.apply(open.stream().map(QueueCommit::next).toList());
            for (int i = 0; i < replies.size(); i++) {
                try {
                    open.get(i).takeReply(replies.get(i));
                } catch (BusException error) {
                    errors.add(error);
                }
            }
        }
        if (!errors.isEmpty()) {
            throw errors.get(0);
        }
        return queues.stream().filter(queue -> queue.status != Status.DONE).map(queue -> queue.staged).toList();
    }

    boolean isOpen() {
        return status == Status.OPEN;
    }

    /** Goes on after what was found is mended. */
    void reopen() {
        status = Status.OPEN;
    }

    /** What is left where the queue has no room; else null. */
    SinkStore.Full full() {
        return full;
    }

    /** The next call. */
    Call next() {
        StagedList part = staged.get(nth);
        List<String> names = new ArrayList<>(keys.shared());
        names.add(keys.sinks());
        names.add(part.key());
        names.add(keys.stages(sink));
        names.addAll(List.of(keys.clock(), keys.acks(), keys.bytes()));
        int last = nth == staged.size() - 1 ? 1 : 0;
        Object[] args = {keys.available(), sink, batch, nth, moved, part.chunkAt(moved), part.rows(), last, SinkStore.LONG_TTL_S, keys.stage(""),
            part.made(), since, whole};
        return Call.script("commit", names, args);
    }

    /** The reply to it. Throws BUSMQ_STAGING_LOST and BUSMQ_STALE_BATCH, and is done then. */
    Status takeReply(Object reply) {
        List<?> found = (List<?>) reply;
        String word = ReadStore.text(found.get(0));
        long a = (Long) found.get(1);
        status = Status.DONE;
        switch (word) {
            case "moved" -> {
                moved += a;
                if (moved >= staged.get(nth).rows()) {
                    go(nth + 1, 0);
                } else {
                    go(nth, moved);
                }
            }
            case "at" -> go((int) a, (Long) found.get(2));
            case "full" -> {
                long later = staged.subList(nth + 1, staged.size()).stream().mapToLong(StagedList::rows).sum();
                full = new SinkStore.Full(a, staged.get(nth).rows() - moved + later);
                status = Status.FULL;
            }
            case "missing" -> status = Status.MISSING;
            case "other" -> status = Status.OTHER;
            case "lost" -> {
                StagedList part = staged.get(nth);
                throw SinkStore.stagingLost(sink, batch, part.queue(), part.rows() - moved, a, part.key(), GIVE_UP);
            }
            case "stale" -> throw SinkStore.stale(sink, batch, Long.toString(a));
            default -> throw BusException.of(ErrorKind.SERVER_REFUSED, "url", "", "reason", "unknown commit status " + PyText.repr(word));
        }
        return status;
    }

    private void go(int nth, long moved) {
        this.nth = nth;
        this.moved = moved;
        status = nth >= 0 && nth < staged.size() ? Status.OPEN : Status.DONE;
    }

    /** What distinguishes the rows of a queue, in whichever order and lists; empty where it is not known. */
    private static String whole(List<StagedList> staged) {
        long rows = 0;
        long digest = 0;
        for (StagedList part : staged) {
            if (part.digest() == null) {
                return "";
            }
            rows += part.rows();
            digest = StagedList.total(digest, part.digest());
        }
        return rows + "-" + digest;
    }
}
