package busmq.spark.redis;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import redis.clients.jedis.Protocol;

/** Which master owns which slot of a cluster, as one node saw it. */
final class SlotMap {
    private final NodeAddress[] owners;

    private SlotMap(NodeAddress[] owners) {
        this.owners = owners;
    }

    /**
     * From the reply of CLUSTER SLOTS; a node that does not know its own host is where it was
     * {@code asked}.
     */
    static SlotMap parse(List<?> reply, String asked) {
        NodeAddress[] owners = new NodeAddress[Protocol.CLUSTER_HASHSLOTS];
        for (Object range : reply) {
            List<?> row = (List<?>) range;
            List<?> master = (List<?>) row.get(2);
            byte[] host = (byte[]) master.get(0);
            NodeAddress node = new NodeAddress(
                    host == null || host.length == 0
                            ? asked
                            : new String(host, StandardCharsets.UTF_8),
                    ((Long) master.get(1)).intValue());
            Arrays.fill(
                    owners,
                    ((Long) row.get(0)).intValue(),
                    ((Long) row.get(1)).intValue() + 1,
                    node);
        }
        return new SlotMap(owners);
    }

    /** The master of a slot; null when no node serves it. */
    NodeAddress owner(int slot) {
        return owners[slot];
    }

    /** The map with what redirections say. */
    SlotMap withMoved(Map<Integer, NodeAddress> moved) {
        if (moved.isEmpty()) {
            return this;
        }
        NodeAddress[] changed = owners.clone();
        moved.forEach((slot, node) -> changed[slot] = node);
        return new SlotMap(changed);
    }

    /** Every node that owns slots, each once. */
    Set<NodeAddress> masters() {
        Set<NodeAddress> all = new LinkedHashSet<>();
        NodeAddress before = null;
        for (NodeAddress node : owners) {
            if (!Objects.equals(node, before) && node != null) {
                all.add(node);
            }
            before = node;
        }
        return all;
    }
}
