package busmq.spark.sink;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.CRC32;

/**
 * A staged list: rows of one task attempt for one queue. {@code chunks} are their sizes as (size,
 * how often). They are the rows at its head; what lies after them does not count. {@code digest}
 * distinguishes them from other rows ({@code writing/sink.py}); null in a manifest of version 1.
 * {@code made} is the epoch of the run that has recorded the list; 0 where it is not recorded, or
 * that is not known.
 */
public record StagedList(
        String queue, int server, String key, List<EqualChunks> chunks, Long digest, long made)
        implements Serializable {
    private static final long MASK = (1L << 53) - 1;

    /**
     * So many chunks of one size, one after another: a million rows are two of these, not a
     * thousand sizes.
     */
    public record EqualChunks(int size, int times) implements Serializable {}

    public StagedList {
        chunks = List.copyOf(chunks);
    }

    StagedList(String queue, int server, String key, List<EqualChunks> chunks, Long digest) {
        this(queue, server, key, chunks, digest, 0);
    }

    /**
     * A checksum of rows that does not depend on their order, chunks or partitions: digests of
     * parts add up ({@link #totalDigest}).
     */
    static long digest(List<byte[]> values) {
        CRC32 crc = new CRC32();
        long sum = 0;
        for (byte[] value : values) {
            crc.reset();
            crc.update(value);
            sum += crc.getValue();
        }
        return sum & MASK;
    }

    static long totalDigest(long one, long other) {
        return (one + other) & MASK;
    }

    /** Return the number of staged rows. */
    public long rows() {
        return chunks.stream().mapToLong(run -> (long) run.size * run.times).sum();
    }

    /**
     * Return the number of rows of the next move after {@code moved} rows: up to the next chunk
     * border.
     */
    public int chunkAt(long moved) {
        long at = 0;
        for (EqualChunks run : chunks) {
            long end = at + (long) run.size * run.times;
            if (moved < end) {
                return (int) (run.size - (moved - at) % run.size);
            }
            at = end;
        }
        return 0;
    }

    /**
     * The staged rows of a task for one queue: closed segments, and the one that grows.
     * {@code writing/sink.py} says why.
     */
    static final class OpenStagedList {
        final String queue;
        final int server;
        /** The record of the list, and its run. */
        final String stagesKey;

        final long epoch;
        private final List<StagedList> closedSegments = new ArrayList<>();
        private String key;
        private long rows;
        private long digest;
        private List<EqualChunks> chunks = new ArrayList<>();

        OpenStagedList(String queue, int server, String stagesKey, long epoch, String key) {
            this.queue = queue;
            this.server = server;
            this.stagesKey = stagesKey;
            this.epoch = epoch;
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

        /** A chunk was confirmed. */
        void addChunk(List<byte[]> chunk) {
            int size = chunk.size();
            digest = totalDigest(digest, StagedList.digest(chunk));
            int last = chunks.size() - 1;
            if (last >= 0 && chunks.get(last).size == size) {
                chunks.set(last, new EqualChunks(size, chunks.get(last).times + 1));
            } else {
                chunks.add(new EqualChunks(size, 1));
            }
            rows += size;
        }

        /** Go on in a new segment: calls to this one may still arrive. {@code token} is random. */
        void startNextSegment(String token) {
            closedSegments.add(new StagedList(queue, server, key, chunks, digest));
            key = key.substring(0, key.length() - token.length()) + token;
            rows = 0;
            digest = 0;
            chunks = new ArrayList<>();
        }

        /** All segments in their order, with what is confirmed of each. */
        List<StagedList> segments() {
            List<StagedList> all = new ArrayList<>(closedSegments);
            all.add(new StagedList(queue, server, key, chunks, digest));
            return all;
        }
    }
}
