package busmq.spark.core;

import java.io.Serializable;

/** Ids first..last (inclusive) of one life of one queue, on the server with this index. */
public record Range(String queue, String born, long first, long last, int server)
        implements Serializable {
    /** A part of this range. */
    public Range within(long from, long until) {
        return new Range(queue, born, from, until, server);
    }

    public long rows() {
        return last - first + 1;
    }
}
