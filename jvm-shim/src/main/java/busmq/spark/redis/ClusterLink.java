package busmq.spark.redis;

import busmq.spark.BusException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.util.JedisClusterCRC16;

/**
 * The link to a Redis Cluster: one connection per node, every call at the node that owns its key.
 */
final class ClusterLink extends SingleCallerLink {
    private final ClusterSeeds cluster;
    private final Map<NodeAddress, JedisConnection> connections = new HashMap<>();
    private SlotMap slotMap;

    ClusterLink(ClusterSeeds cluster) {
        this.cluster = cluster;
    }

    @Override
    List<Object> execute(List<RedisCall> calls) {
        ClusterPipeline clusterPipeline = new ClusterPipeline(calls, cluster);
        LinkRetry retry = new LinkRetry();
        while (true) {
            RuntimeException problem;
            try {
                if (slotMap == null) {
                    refresh(Set.of());
                }
                runRound(clusterPipeline, calls);
                clusterPipeline.throwIfFailed();
                if (clusterPipeline.mapIsStale) {
                    refresh(clusterPipeline.deadNodes);
                }
                problem = clusterPipeline.retryReason;
            } catch (NoServerReachable error) {
                problem = error;
            }
            if (clusterPipeline.pending.isEmpty()) {
                refreshIfMoved(clusterPipeline);
                return clusterPipeline.repliesAndErrors(null);
            }
            if (problem != null) {
                try {
                    retry.pause(problem, cluster);
                } catch (BusException over) {
                    return clusterPipeline.repliesAndErrors(over);
                }
            }
        }
    }

    private void runRound(ClusterPipeline clusterPipeline, List<RedisCall> calls) {
        record SentBatch(NodeBatch batch, JedisConnection connection, int replies) {}
        List<SentBatch> sent = new ArrayList<>();
        int read = 0;
        try {
            for (NodeBatch batch : clusterPipeline.batches(slotMap)) {
                JedisConnection connection;
                try {
                    connection = connectionTo(batch.node());
                } catch (JedisException error) {
                    BusException lost = ErrorTranslator.translate(error, cluster);
                    if (!lost.kind().isLinkLost()) {
                        throw lost;
                    }
                    clusterPipeline.onNodeUnreachable(batch, lost);
                    continue;
                }
                try {
                    sent.add(new SentBatch(
                            batch,
                            connection,
                            batch.send(connection, calls, clusterPipeline.withScriptText)));
                } catch (JedisException error) {
                    dropConnection(batch.node());
                    clusterPipeline.onConnectionLost(
                            batch, ErrorTranslator.translate(error, cluster));
                }
            }
            for (; read < sent.size(); read++) {
                SentBatch each = sent.get(read);
                try {
                    clusterPipeline.addReplies(
                            each.batch,
                            each.batch.withoutAskingReplies(
                                    each.connection.flushAndRead(each.replies)));
                } catch (JedisException error) {
                    dropConnection(each.batch.node());
                    clusterPipeline.onConnectionLost(
                            each.batch, ErrorTranslator.translate(error, cluster));
                }
            }
        } finally {
            // Otherwise later calls would receive its replies.
            sent.subList(read, sent.size()).forEach(each -> dropConnection(each.batch.node()));
        }
        slotMap = slotMap.withMoved(clusterPipeline.movedSlots);
    }

    /**
     * The address of the node that owns a key, as the calls so far have found; empty before the
     * first of them.
     */
    String ownerAddress(String key) {
        NodeAddress node = slotMap == null ? null : slotMap.owner(JedisClusterCRC16.getSlot(key));
        return node == null ? "" : node.host() + ":" + node.port();
    }

    /**
     * Reads the slot map again after a MOVED reply: where one slot has moved, others probably have,
     * too.
     */
    private void refreshIfMoved(ClusterPipeline clusterPipeline) {
        if (!clusterPipeline.movedSlots.isEmpty()) {
            try {
                refresh(Set.of());
            } catch (NoServerReachable | BusException error) {
                slotMap = null;
            }
        }
    }

    private void refresh(Set<NodeAddress> dead) {
        slotMap = cluster.fetchSlotMap(slotMap == null ? Set.of() : slotMap.masters(), dead);
        Set<NodeAddress> masters = slotMap.masters();
        List.copyOf(connections.keySet()).stream()
                .filter(node -> !masters.contains(node))
                .forEach(this::dropConnection);
    }

    /**
     * The answer of every master. If a node does not answer, the link repeats the call to all
     * nodes, until the successor answers or the time for retries is over.
     */
    <T> List<T> askEachMaster(Function<RedisLink, T> ask) {
        LinkRetry retry = new LinkRetry();
        while (true) {
            try {
                refresh(Set.of());
                return slotMap.masters().stream()
                        .map(node -> ask.apply(new NodeLink(node)))
                        .toList();
            } catch (NoServerReachable | BusException error) {
                retry.pause(error, cluster);
            }
        }
    }

    private JedisConnection connectionTo(NodeAddress node) {
        JedisConnection connection = connections.get(node);
        if (connection == null) {
            connection = JedisConnection.dial(cluster.server(node));
            connections.put(node, connection);
        }
        return connection;
    }

    private void dropConnection(NodeAddress node) {
        JedisConnection connection = connections.remove(node);
        if (connection != null) {
            connection.closeWithoutQuit();
        }
    }

    @Override
    public void close() {
        List.copyOf(connections.keySet()).forEach(this::dropConnection);
    }

    /** Call one node once: a redirection or a broken link is an error. */
    private final class NodeLink implements RedisLink {
        private final NodeAddress node;

        private NodeLink(NodeAddress node) {
            this.node = node;
        }

        @Override
        public List<Object> tryAll(List<RedisCall> calls) {
            try {
                calls.forEach(call -> connectionTo(node).bufferCall(call, true));
                return connectionTo(node).flushAndRead(calls.size()).stream()
                        .<Object>map(reply -> reply instanceof JedisDataException refused
                                ? ErrorTranslator.translate(refused, cluster)
                                : reply)
                        .toList();
            } catch (JedisException error) {
                dropConnection(node);
                throw ErrorTranslator.translate(error, cluster);
            } catch (BusException known) {
                throw known;
            } catch (RuntimeException | Error unforeseen) {
                dropConnection(node); // as in tryAll of the whole link
                throw unforeseen;
            }
        }

        @Override
        public void close() {
            dropConnection(node);
        }
    }
}
