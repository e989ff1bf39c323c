package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.ErrorKind;
import busmq.spark.PyText;
import busmq.spark.core.QueueKeys;
import busmq.spark.redis.RedisCall;
import busmq.spark.store.ReadStore;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.function.Function;
import java.util.stream.Collectors;

/**
 * The commit of a batch to one queue, call by call: {@code commit} in {@code writing/sink.py}. Safe
 * to repeat at any time, by any process.
 */
final class SinkQueueCommitter {
    /** The result of a commit call. */
    enum Status {
        OPEN,
        DONE,
        FULL,
        MISSING,
        OTHER_RECORD
    }

    private static final int MAX_ROWS_PER_COMMIT =
            SharedPythonConstants.intNumber("maxRowsPerCommit");
    private static final int CHUNKS_PER_COMMIT = SharedPythonConstants.intNumber("chunksPerCommit");
    private static final int MAX_QUEUES_PER_COMMIT =
            SharedPythonConstants.intNumber("maxQueuesPerCommit");
    private static final String ABANDON_BATCH_REMEDY =
            SharedPythonConstants.text("abandonBatchRemedy");

    private final QueueKeys keys;
    private final String sink;
    private final long batch;
    private final List<StagedList> staged;
    private final long firstValidEpoch;
    private final String rowsDigest;
    private final List<Move> moves = new ArrayList<>();
    private Status status = Status.OPEN;
    private SinkStore.CommitStoppedAtMaxsize partialCommit;
    private int listIndex;
    private long rowsMoved;

    /** The call that moves the next chunk of a list, of which so many rows are moved before. */
    private record Move(int nth, long moved) {}

    /**
     * {@code firstValidEpoch}: progress of records that were made by runs with lower epochs counts
     * for nothing.
     */
    SinkQueueCommitter(
            QueueKeys keys,
            String sink,
            long batch,
            List<StagedList> staged,
            long firstValidEpoch) {
        this.keys = keys;
        this.sink = sink;
        this.batch = batch;
        this.staged = staged;
        this.firstValidEpoch = firstValidEpoch;
        this.rowsDigest = rowsDigest(staged);
    }

    /** The lists of each queue, in groups of queues that are committed together. */
    static List<List<List<StagedList>>> groups(List<StagedList> staged) {
        List<List<List<StagedList>>> found = new ArrayList<>();
        long room = 0;
        for (List<StagedList> parts : staged.stream()
                .collect(Collectors.groupingBy(
                        StagedList::queue, LinkedHashMap::new, Collectors.toList()))
                .values()) {
            long rows = parts.stream().mapToLong(StagedList::rows).sum();
            if (found.isEmpty()
                    || rows > room
                    || found.get(found.size() - 1).size() == MAX_QUEUES_PER_COMMIT) {
                found.add(new ArrayList<>());
                room = MAX_ROWS_PER_COMMIT;
            }
            found.get(found.size() - 1).add(parts);
            room -= rows;
        }
        return found;
    }

    /**
     * Runs commits side by side, some calls of each in a round trip. The result is the lists of
     * those that are not done. The first error is thrown at the end.
     */
    static List<List<StagedList>> commitTogether(
            List<SinkQueueCommitter> queues, Function<List<RedisCall>, List<Object>> run) {
        List<BusException> errors = new ArrayList<>();
        for (List<SinkQueueCommitter> open = queues;
                !open.isEmpty();
                open = open.stream().filter(SinkQueueCommitter::isOpen).toList()) {
            List<List<RedisCall>> calls =
                    open.stream().map(SinkQueueCommitter::nextCalls).toList();
            List<Object> replies =
                    run.apply(calls.stream().flatMap(List::stream).toList());
            for (int i = 0, from = 0; i < calls.size(); from += calls.get(i).size(), i++) {
                try {
                    open.get(i)
                            .applyReplies(
                                    replies.subList(from, from + calls.get(i).size()));
                } catch (BusException error) {
                    errors.add(error);
                }
            }
        }
        if (!errors.isEmpty()) {
            throw errors.get(0);
        }
        return queues.stream()
                .filter(queue -> queue.status != Status.DONE)
                .map(queue -> queue.staged)
                .toList();
    }

    boolean isOpen() {
        return status == Status.OPEN;
    }

    /** To be called after the cause of MISSING is removed. */
    void reopen() {
        status = Status.OPEN;
    }

    /** Return the remaining rows where the queue had no room; else null. */
    SinkStore.CommitStoppedAtMaxsize partialCommit() {
        return partialCommit;
    }

    /** The calls of the next chunks. */
    List<RedisCall> nextCalls() {
        moves.clear();
        int nth = listIndex;
        long moved = rowsMoved;
        while (nth < staged.size() && moves.size() < CHUNKS_PER_COMMIT) {
            moves.add(new Move(nth, moved));
            moved += staged.get(nth).chunkAt(moved);
            if (moved >= staged.get(nth).rows()) {
                nth++;
                moved = 0;
            }
        }
        return moves.stream().map(this::moveCall).toList();
    }

    private RedisCall moveCall(Move move) {
        StagedList part = staged.get(move.nth);
        List<String> names = new ArrayList<>(keys.peerKeys());
        names.add(keys.sinks());
        names.add(part.key());
        names.add(keys.stages(sink));
        names.addAll(List.of(keys.clock(), keys.acks(), keys.bytes()));
        int last = move.nth == staged.size() - 1 ? 1 : 0;
        Object[] args = {
            keys.available(),
            sink,
            batch,
            move.nth,
            move.moved,
            part.chunkAt(move.moved),
            part.rows(),
            last,
            SinkStore.MIN_RECORD_TTL_S,
            keys.stage(""),
            part.made(),
            firstValidEpoch,
            rowsDigest
        };
        return RedisCall.script("commit", names, args);
    }

    /**
     * Read the replies. A call moves nothing unless the progress is at its start, so the calls
     * after an incomplete one do nothing. Throws BUSMQ_STAGING_LOST and BUSMQ_STALE_BATCH, and is
     * done then.
     */
    Status applyReplies(List<?> replies) {
        for (int i = 0; i < replies.size() && (i == 0 || status == Status.OPEN); i++) {
            applyReply(moves.get(i), (List<?>) replies.get(i));
        }
        return status;
    }

    private void applyReply(Move move, List<?> found) {
        StagedList part = staged.get(move.nth);
        String word = ReadStore.text(found.get(0));
        long a = (Long) found.get(1);
        status = Status.DONE;
        switch (word) {
            case "moved" -> {
                if (move.moved + a >= part.rows()) {
                    setProgress(move.nth + 1, 0);
                } else {
                    setProgress(move.nth, move.moved + a);
                }
            }
            case "at" -> setProgress((int) a, (Long) found.get(2));
            case "full" -> {
                long later = staged.subList(move.nth + 1, staged.size()).stream()
                        .mapToLong(StagedList::rows)
                        .sum();
                partialCommit =
                        new SinkStore.CommitStoppedAtMaxsize(a, part.rows() - move.moved + later);
                status = Status.FULL;
            }
            case "missing" -> status = Status.MISSING;
            case "other" -> status = Status.OTHER_RECORD;
            case "lost" -> throw SinkStore.stagingLostError(
                    sink,
                    batch,
                    part.queue(),
                    part.rows() - move.moved,
                    a,
                    part.key(),
                    ABANDON_BATCH_REMEDY);
            case "stale" -> throw SinkStore.staleBatchError(sink, batch, Long.toString(a));
            default -> throw BusException.of(
                    ErrorKind.SERVER_REFUSED,
                    "url",
                    "",
                    "reason",
                    "unknown commit status " + PyText.repr(word));
        }
    }

    private void setProgress(int nth, long moved) {
        this.listIndex = nth;
        this.rowsMoved = moved;
        status = nth >= 0 && nth < staged.size() ? Status.OPEN : Status.DONE;
    }

    /**
     * Return a digest of the rows of a queue that does not depend on order and lists; empty where
     * it is not known.
     */
    private static String rowsDigest(List<StagedList> staged) {
        long rows = 0;
        long digest = 0;
        for (StagedList part : staged) {
            if (part.digest() == null) {
                return "";
            }
            rows += part.rows();
            digest = StagedList.totalDigest(digest, part.digest());
        }
        return rows + "-" + digest;
    }
}
