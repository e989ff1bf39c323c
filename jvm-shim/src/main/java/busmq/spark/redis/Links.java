package busmq.spark.redis;

import busmq.spark.core.QueueKeys;
import busmq.spark.options.RedisOptions;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;

/**
 * The links to every server of a bus, in the order of its URLs; a cluster is one. Not for two threads at once: borrow one for each.
 */
public final class Links implements AutoCloseable {
    /** Links to the servers of the options, connected or not; {@link #close} gives them back to a pool of this process. */
    public static Links of(RedisOptions options) {
        throw new UnsupportedOperationException("landing soon");
    }

    /** In the order of the URLs. */
    public List<Link> links() {
        throw new UnsupportedOperationException("landing soon");
    }

    /** The link of a queue by the index that {@link #locate} found. */
    public Link link(int index) {
        return links().get(index);
    }

    /** The keys of a queue, as this layout spells them. */
    public QueueKeys keys(String queue) {
        throw new UnsupportedOperationException("landing soon");
    }

    /**
     * The index of the server of each queue: the one that has it, else the one its name hashes to. One round trip per server. Throws when a
     * server does not answer: to guess then would split a queue over two servers.
     */
    public Map<String, Integer> locate(Collection<String> queues) {
        throw new UnsupportedOperationException("landing soon");
    }

    /** Every queue that exists with the index of its server, sorted by name. Walks with SCAN, so Redis is never held. */
    public SortedMap<String, Integer> discover() {
        throw new UnsupportedOperationException("landing soon");
    }

    /** Back to the pool. */
    @Override
    public void close() {
        throw new UnsupportedOperationException("landing soon");
    }
}
