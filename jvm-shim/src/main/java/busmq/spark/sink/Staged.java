package busmq.spark.sink;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;

/** One staged list: rows of one task attempt for one queue. {@code runs} are the chunk sizes as (size, how often). */
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

    /** A list that grows. */
    static final class Growing {
        final String queue;
        final int server;
        final String key;
        long rows;
        private final List<Run> runs = new ArrayList<>();

        Growing(String queue, int server, String key) {
            this.queue = queue;
            this.server = server;
            this.key = key;
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

        Staged done() {
            return new Staged(queue, server, key, runs);
        }
    }
}
