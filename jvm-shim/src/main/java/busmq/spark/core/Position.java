package busmq.spark.core;

import java.io.Serializable;

/**
 * Everything up to and including the id {@code last} was read, in the life of the queue named
 * {@code born}.
 *
 * @param mark fingerprint of the message {@code last}; empty when unknown
 * @param start where the queue enters the query or goes on after a loss; null otherwise
 * @param lost ids skipped so far with failOnDataLoss=false
 */
public record Position(String born, long last, String mark, Long start, long lost)
        implements Serializable {
    public Position(String born, long last, String mark) {
        this(born, last, mark, null, 0);
    }
}
