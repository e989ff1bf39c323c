package busmq.spark.store;

import busmq.spark.Contract;
import busmq.spark.core.QueueKeys;
import busmq.spark.redis.Call;
import busmq.spark.redis.Link;
import java.util.ArrayList;
import java.util.List;

/**
 * How many messages fit a budget of bytes: exact for the first 1,000 messages or 1 MB, beyond that each counts as the longest where writers have
 * noted that none is much longer, else an estimate by one message in {@link #SAMPLED} (as {@code bytes_until} of {@code core/state.py}).
 */
final class MessagesWithinBytes {
    private static final int SAMPLED = Contract.whole("sampled");
    private static final int RUN = Contract.whole("run");
    private static final int MOST_RUN = Contract.whole("mostRun");
    private static final long LARGE_BYTES = Contract.number("largeBytes");
    private static final long LEAST_PLACES = Contract.number("leastPlaces");
    private static final long MOST_PLACES = Contract.number("mostPlaces");
    private static final long PLACES_PER_CALL = Contract.number("placesPerCall");
    private static final double LONGER = Contract.number("longerPercent") / 100.0;

    private final Link link;
    private final QueueKeys keys;
    private final List<String> messages;
    private final long budget;
    private long at;
    private long used;

    private MessagesWithinBytes(Link link, QueueKeys keys, long first, long budget) {
        this.link = link;
        this.keys = keys;
        messages = List.of(keys.messages());
        this.budget = budget;
        at = first - 1;
    }

    /** The last id of first..last such that the values up to it come to {@code budget} bytes (first - 1 when none fits), and their bytes. */
    static long[] until(Link link, QueueKeys keys, long first, long last, long budget) {
        MessagesWithinBytes found = new MessagesWithinBytes(link, keys, first, budget);
        boolean done = false;
        while (found.at < last && !done) {
            done = found.exactly(first, last);
            if (!done) {
                found.roughly(first, last);
            }
        }
        return new long[] {found.at, found.used};
    }

    private boolean exactly(long first, long last) {
        List<Object> replies = link.runAll(List.of(Call.script("measure", messages, at + 1, last, budget - used),
                Call.command("HGET", keys.metadata(), "sizes")));
        List<Object> reply = ReadStore.list(replies.get(0));
        at = (Long) reply.get(0);
        used += (Long) reply.get(1);
        return (Long) reply.get(2) == 1 || asTheLongest(first, last, ValueSizes.of(replies.get(1)).longestOf(at + 1, last));
    }

    /** Whether all that is left could be counted that way. */
    private boolean asTheLongest(long first, long last, long longest) {
        if (longest < 0 || longest > LONGER * Math.max(1, used / (at - first + 1))) {
            return false;
        }
        long rows = Math.min(last - at, (budget - used) / Math.max(1, longest));
        at += rows;
        used += rows * longest;
        return true;
    }

    private void roughly(long first, long last) {
        long mean = Math.max(1, used / (at - first + 1));
        long likely = Math.min(last - at, (budget - used) / mean);
        long run = mean <= LARGE_BYTES ? RUN : 1;
        long places = Math.min(MOST_PLACES * RUN / run, likely / (SAMPLED * run));
        if (places < LEAST_PLACES) {
            return;
        }
        run = run > 1 ? Math.max(run, Math.min(MOST_RUN, likely / (SAMPLED * places))) : 1;
        long stride = likely / places;
        List<Call> calls = new ArrayList<>();
        for (long start = 0; start < places; start += PLACES_PER_CALL) {
            calls.add(Call.script("sample", messages, at + 1 + start * stride, stride, run, Math.min(PLACES_PER_CALL, places - start)));
        }
        for (Object part : link.runAll(calls)) {
            for (Object sampled : ReadStore.list(part)) {
                long size = (Long) sampled;
                if (used + size * stride / run > budget) {
                    long fitting = (budget - used) * run / size;
                    at += fitting;
                    used += fitting * size / run;
                    return;
                }
                at += stride;
                used += size * stride / run;
            }
        }
    }
}
