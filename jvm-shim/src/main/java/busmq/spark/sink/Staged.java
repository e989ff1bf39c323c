package busmq.spark.sink;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;

/**
 * One staged list: rows of one task attempt for one queue. {@code runs} are the chunk sizes as (size, how often). They are the rows at its head;
 * what lies behind them does not count.
 */
public record Staged(String queue, int server, String key, List<Run> runs) implements Serializable {

    /** So many chunks of one size, one after another: a million rows are two runs, not a thousand numbers. */
    public record Run(int size, int times) implements Serializable {}

    public Staged {
        runs = List.copyOf(runs);
    }

    /** How many rows were staged. */
    public long rows() {
        return runs.stream().mapToLong(run -> (long) run.size * run.times).sum();
    }

    /** How many rows the next move may take when {@code moved} are done: up to the next chunk border. */
    public int chunkAt(long moved) {
        long at = 0;
        for (Run run : runs) {
            long end = at + (long) run.size * run.times;
            if (moved < end) {
                return (int) (run.size - (moved - at) % run.size);
            }
            at = end;
        }
        return 0;
    }

    /** What a task stages for one queue: segments that are closed, and the one that grows. {@code core/sink.py} says why. */
    static final class Growing {
        final String queue;
        final int server;
        private final List<Staged> closed = new ArrayList<>();
        private String key;
        private long rows;
        private List<Run> runs = new ArrayList<>();

        Growing(String queue, int server, String key) {
            this.queue = queue;
            this.server = server;
            this.key = key;
        }

        /** The segment that grows. */
        String key() {
            return key;
        }

        /** The rows of that segment that Redis has confirmed. */
        long rows() {
            return rows;
        }

        void add(int size) {
            int last = runs.size() - 1;
            if (last >= 0 && runs.get(last).size == size) {
                runs.set(last, new Run(size, runs.get(last).times + 1));
            } else {
                runs.add(new Run(size, 1));
            }
            rows += size;
        }

        /** Go on in a new segment: what is under way to this one may arrive at any time. {@code token} is random. */
        void cut(String token) {
            closed.add(new Staged(queue, server, key, runs));
            key = key.substring(0, key.length() - token.length()) + token;
            rows = 0;
            runs = new ArrayList<>();
        }

        /** All segments in their order, with what is confirmed of each. */
        List<Staged> segments() {
            List<Staged> all = new ArrayList<>(closed);
            all.add(new Staged(queue, server, key, runs));
            return all;
        }
    }
}
