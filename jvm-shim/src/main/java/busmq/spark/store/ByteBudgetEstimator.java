package busmq.spark.store;

import busmq.spark.SharedPythonConstants;
import busmq.spark.core.QueueKeys;
import busmq.spark.redis.RedisCall;
import busmq.spark.redis.RedisLink;
import java.util.ArrayList;
import java.util.List;

/**
 * Estimator of the messages that fit a budget of bytes. It is exact for the first 1,000 messages or
 * 1 MB. Beyond that each message counts as the longest, where writers have noted that none is much
 * longer; else one message in {@link #SAMPLE_EVERY_MESSAGES} is a sample (like {@code bytes_until}
 * of {@code reading/reader_operations.py}).
 */
final class ByteBudgetEstimator {
    private static final int SAMPLE_EVERY_MESSAGES =
            SharedPythonConstants.intNumber("sampleEveryMessages");
    private static final int MIN_SAMPLE_RUN = SharedPythonConstants.intNumber("minSampleRun");
    private static final int MAX_SAMPLE_RUN = SharedPythonConstants.intNumber("maxSampleRun");
    private static final long LARGE_MESSAGE_BYTES =
            SharedPythonConstants.number("largeMessageBytes");
    private static final long MIN_SAMPLE_PLACES = SharedPythonConstants.number("minSamplePlaces");
    private static final long MAX_SAMPLE_PLACES = SharedPythonConstants.number("maxSamplePlaces");
    private static final long SAMPLE_PLACES_PER_CALL =
            SharedPythonConstants.number("samplePlacesPerCall");
    private static final double MAX_LONGEST_TO_MEAN_RATIO =
            SharedPythonConstants.number("maxLongestToMeanPercent") / 100.0;

    private final RedisLink link;
    private final QueueKeys keys;
    private final List<String> messages;
    private final long budget;
    private long lastId;
    private long usedBytes;

    private ByteBudgetEstimator(RedisLink link, QueueKeys keys, long first, long budget) {
        this.link = link;
        this.keys = keys;
        messages = List.of(keys.messages());
        this.budget = budget;
        lastId = first - 1;
    }

    /**
     * The last id of first..last such that the values up to it come to {@code budget} bytes (first
     * - 1 when none fits), and their bytes.
     */
    static long[] lastIdWithin(RedisLink link, QueueKeys keys, long first, long last, long budget) {
        ByteBudgetEstimator found = new ByteBudgetEstimator(link, keys, first, budget);
        boolean done = false;
        while (found.lastId < last && !done) {
            done = found.measure(first, last);
            if (!done) {
                found.estimate(first, last);
            }
        }
        return new long[] {found.lastId, found.usedBytes};
    }

    private boolean measure(long first, long last) {
        List<Object> replies = link.runAll(List.of(
                RedisCall.script("measure", messages, lastId + 1, last, budget - usedBytes),
                RedisCall.command("HGET", keys.metadata(), "sizes")));
        List<Object> reply = ReadStore.list(replies.get(0));
        lastId = (Long) reply.get(0);
        usedBytes += (Long) reply.get(1);
        return (Long) reply.get(2) == 1
                || countAsLongest(
                        first,
                        last,
                        ValueSizeStats.parse(replies.get(1)).longestOf(lastId + 1, last));
    }

    /** Whether all that is left could be counted that way. */
    private boolean countAsLongest(long first, long last, long longest) {
        if (longest < 0
                || longest
                        > MAX_LONGEST_TO_MEAN_RATIO
                                * Math.max(1, usedBytes / (lastId - first + 1))) {
            return false;
        }
        long rows = Math.min(last - lastId, (budget - usedBytes) / Math.max(1, longest));
        lastId += rows;
        usedBytes += rows * longest;
        return true;
    }

    private void estimate(long first, long last) {
        long mean = Math.max(1, usedBytes / (lastId - first + 1));
        long likely = Math.min(last - lastId, (budget - usedBytes) / mean);
        long run = mean <= LARGE_MESSAGE_BYTES ? MIN_SAMPLE_RUN : 1;
        long places = Math.min(
                MAX_SAMPLE_PLACES * MIN_SAMPLE_RUN / run, likely / (SAMPLE_EVERY_MESSAGES * run));
        if (places < MIN_SAMPLE_PLACES) {
            return;
        }
        run = run > 1
                ? Math.max(run, Math.min(MAX_SAMPLE_RUN, likely / (SAMPLE_EVERY_MESSAGES * places)))
                : 1;
        long stride = likely / places;
        List<RedisCall> calls = new ArrayList<>();
        for (long start = 0; start < places; start += SAMPLE_PLACES_PER_CALL) {
            calls.add(RedisCall.script(
                    "sample",
                    messages,
                    lastId + 1 + start * stride,
                    stride,
                    run,
                    Math.min(SAMPLE_PLACES_PER_CALL, places - start)));
        }
        for (Object part : link.runAll(calls)) {
            for (Object sampled : ReadStore.list(part)) {
                long size = (Long) sampled;
                if (usedBytes + size * stride / run > budget) {
                    long fitting = (budget - usedBytes) * run / size;
                    lastId += fitting;
                    usedBytes += fitting * size / run;
                    return;
                }
                lastId += stride;
                usedBytes += size * stride / run;
            }
        }
    }
}
