package busmq.spark.redis;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.util.JedisClusterCRC16;

/** The link to a Redis Cluster: one connection per node, every call at the node that owns its key. */
final class ClusterLink extends GuardedLink {
    private final ClusterSeeds cluster;
    private final Map<ClusterNode, JedisConnection> wires = new HashMap<>();
    private SlotMap map;

    ClusterLink(ClusterSeeds cluster) {
        this.cluster = cluster;
    }

    @Override
    List<Object> step(List<Call> calls) {
        ClusterStep clusterStep = new ClusterStep(calls, cluster);
        Retry retry = new Retry();
        while (true) {
            RuntimeException problem;
            try {
                if (map == null) {
                    refresh(Set.of());
                }
                round(clusterStep, calls);
                clusterStep.check();
                if (clusterStep.stale) {
                    refresh(clusterStep.dead);
                }
                problem = clusterStep.retryReason;
            } catch (ServerUnreachable error) {
                problem = error;
            }
            if (clusterStep.pending.isEmpty()) {
                tidy(clusterStep);
                return clusterStep.answers(null);
            }
            if (problem != null) {
                try {
                    retry.pause(problem, cluster);
                } catch (BusException over) {
                    return clusterStep.answers(over);
                }
            }
        }
    }

    private void round(ClusterStep clusterStep, List<Call> calls) {
        record UnderWay(NodeBatch batch, JedisConnection wire, int replies) {
        }
        List<UnderWay> sent = new ArrayList<>();
        int read = 0;
        try {
            for (NodeBatch batch : clusterStep.batches(map)) {
                JedisConnection wire;
                try {
                    wire = wire(batch.node());
                } catch (JedisException error) {
                    BusException lost = ErrorTranslator.translate(error, cluster);
                    if (lost.kind() != ErrorKind.LINK_LOST) {
                        throw lost;
                    }
                    clusterStep.unsent(batch, lost);
                    continue;
                }
                try {
                    sent.add(new UnderWay(batch, wire, batch.send(wire, calls, clusterStep.whole)));
                } catch (JedisException error) {
                    drop(batch.node());
                    clusterStep.lost(batch, ErrorTranslator.translate(error, cluster));
                }
            }
            for (; read < sent.size(); read++) {
                UnderWay each = sent.get(read);
                try {
                    clusterStep.addReplies(each.batch, each.batch.replies(each.wire.read(each.replies)));
                } catch (JedisException error) {
                    drop(each.batch.node());
                    clusterStep.lost(each.batch, ErrorTranslator.translate(error, cluster));
                }
            }
        } finally {
            sent.subList(read, sent.size()).forEach(each -> drop(each.batch.node())); // its replies would be taken for others'
        }
        map = map.withMoved(clusterStep.moved);
    }

    /** The address of the node that owns a key, as the calls so far have found; empty before the first of them. */
    String owner(String key) {
        ClusterNode node = map == null ? null : map.owner(JedisClusterCRC16.getSlot(key));
        return node == null ? "" : node.host() + ":" + node.port();
    }

    /** Where one slot has moved, others have too. */
    private void tidy(ClusterStep clusterStep) {
        if (!clusterStep.moved.isEmpty()) {
            try {
                refresh(Set.of());
            } catch (ServerUnreachable | BusException error) {
                map = null;
            }
        }
    }

    private void refresh(Set<ClusterNode> dead) {
        map = cluster.fetchSlotMap(map == null ? Set.of() : map.masters(), dead);
        Set<ClusterNode> masters = map.masters();
        List.copyOf(wires.keySet()).stream().filter(node -> !masters.contains(node)).forEach(this::drop);
    }

    /** What every master answers. When one does not, all are asked anew, until its successor does or patience is over. */
    <T> List<T> askEachMaster(Function<Link, T> ask) {
        Retry retry = new Retry();
        while (true) {
            try {
                refresh(Set.of());
                return map.masters().stream().map(node -> ask.apply(new NodeLink(node))).toList();
            } catch (ServerUnreachable | BusException error) {
                retry.pause(error, cluster);
            }
        }
    }

    private JedisConnection wire(ClusterNode node) {
        JedisConnection wire = wires.get(node);
        if (wire == null) {
            wire = JedisConnection.dial(cluster.server(node));
            wires.put(node, wire);
        }
        return wire;
    }

    private void drop(ClusterNode node) {
        JedisConnection wire = wires.remove(node);
        if (wire != null) {
            wire.end();
        }
    }

    @Override
    public void close() {
        List.copyOf(wires.keySet()).forEach(this::drop);
    }

    /** One node, asked once: a redirection or a broken link is an error. */
    private final class NodeLink implements Link {
        private final ClusterNode node;

        private NodeLink(ClusterNode node) {
            this.node = node;
        }

        @Override
        public List<Object> tryAll(List<Call> calls) {
            try {
                calls.forEach(call -> wire(node).send(call, true));
                return wire(node).read(calls.size()).stream()
                        .<Object>map(reply -> reply instanceof JedisDataException refused ? ErrorTranslator.translate(refused, cluster) : reply)
                        .toList();
            } catch (JedisException error) {
                drop(node);
                throw ErrorTranslator.translate(error, cluster);
            } catch (BusException known) {
                throw known;
            } catch (RuntimeException | Error unforeseen) {
                drop(node); // as in tryAll of the whole link
                throw unforeseen;
            }
        }

        @Override
        public void close() {
            drop(node);
        }
    }
}
