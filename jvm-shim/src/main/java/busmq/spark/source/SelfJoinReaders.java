package busmq.spark.source;

import busmq.spark.core.Position;
import busmq.spark.options.ReadOptions;
import busmq.spark.store.LeaseHolderToken;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;

/**
 * The streams of one query, where several read the same queue (a self-join): they share its lease,
 * and acknowledge what all of them have done. Spark makes all streams of a query before it asks any
 * of them, each with a folder of its own in the checkpoint of the query.
 */
final class SelfJoinReaders implements AutoCloseable {
    private static final Map<String, Map<String, SelfJoinReaders>> QUERIES = new HashMap<>();

    private final String query;
    private final String folder;
    private final ReadOptions options;
    private final Predicate<String> readsQueue;
    private final String token;
    private final Map<String, Position> donePositions = new HashMap<>();
    private Set<String> followedLives = Set.of();

    private SelfJoinReaders(String folder, ReadOptions options, Predicate<String> readsQueue) {
        this.folder = folder;
        this.options = options;
        this.readsQueue = readsQueue;
        query = folder.substring(0, folder.lastIndexOf('/') + 1);
        token = options.ack().equals("commit") ? LeaseHolderToken.myToken() : "";
    }

    /**
     * A stream with this folder in the checkpoint of its query; one that had it before was of an
     * earlier run, as were the others of that query.
     */
    static SelfJoinReaders register(String folder, ReadOptions options, Predicate<String> wanted) {
        SelfJoinReaders made = new SelfJoinReaders(folder, options, wanted);
        synchronized (QUERIES) {
            Map<String, SelfJoinReaders> others =
                    QUERIES.computeIfAbsent(made.query, key -> new HashMap<>());
            if (others.containsKey(folder)) {
                others.clear();
            }
            others.put(folder, made);
        }
        return made;
    }

    /** Return the lease token of this stream; empty when it acknowledges nothing. */
    String token() {
        return token;
    }

    /**
     * Which lives of queues this stream reads in a batch. The result are those that another stream
     * of this query reads, too.
     */
    Set<String> findSharedLives(Collection<String> born) {
        synchronized (QUERIES) {
            followedLives = Set.copyOf(born);
            Set<String> shared = new HashSet<>();
            if (!folder.isEmpty()) {
                QUERIES.getOrDefault(query, Map.of()).values().stream()
                        .filter(other -> other != this)
                        .forEach(other -> shared.addAll(other.followedLives));
            }
            shared.retainAll(followedLives);
            return shared;
        }
    }

    /** Whether another stream of this query holds its leases by this token. */
    boolean isSiblingToken(String holder) {
        return !holder.isEmpty()
                && siblings().stream().anyMatch(other -> other.token.equals(holder));
    }

    /**
     * Return the lowest positions of all readers after this one has reached {@code positions}; none
     * for a queue that a reader has not begun.
     */
    Map<String, Position> lowestPositions(Map<String, Position> positions) {
        Set<SelfJoinReaders> others = siblings();
        synchronized (QUERIES) {
            donePositions.putAll(positions);
            Map<String, Position> found = new HashMap<>();
            positions.forEach((queue, position) -> {
                Position lowest = lowestPosition(queue, position, others);
                if (lowest != null) {
                    found.put(queue, lowest);
                }
            });
            return found;
        }
    }

    private static Position lowestPosition(
            String queue, Position own, Set<SelfJoinReaders> others) {
        Position lowest = own;
        for (SelfJoinReaders other : others) {
            if (!other.readsQueue.test(queue)) {
                continue;
            }
            Position position = other.donePositions.get(queue);
            if (position == null || !position.born().equals(own.born())) {
                return null;
            }
            lowest = position.last() < lowest.last() ? position : lowest;
        }
        return lowest;
    }

    /** Readers with the same checkpoint. */
    private Set<SelfJoinReaders> siblings() {
        synchronized (QUERIES) {
            Set<SelfJoinReaders> found = new HashSet<>(
                    folder.isEmpty()
                            ? Set.of()
                            : QUERIES.getOrDefault(query, Map.of()).values());
            found.removeIf(other -> other == this
                    || other.token.isEmpty()
                    || !other.options.redis().equals(options.redis())
                    || !other.options.subscription().equals(options.subscription()));
            return found;
        }
    }

    /** This stream ends. */
    @Override
    public void close() {
        synchronized (QUERIES) {
            Map<String, SelfJoinReaders> all = QUERIES.getOrDefault(query, new HashMap<>());
            all.remove(folder, this);
            if (all.isEmpty()) {
                QUERIES.remove(query);
            }
        }
    }
}
