package busmq.spark.core;

import java.io.Serializable;

/** Ids first..last (inclusive) of one life of one queue, on the server with this index. */
public record Range(String queue, String born, long first, long last, int server)
        implements Serializable {
    public long rows() {
        return last - first + 1;
    }
}
