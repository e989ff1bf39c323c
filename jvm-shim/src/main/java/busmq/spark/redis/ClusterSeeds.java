package busmq.spark.redis;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Collectors;
import redis.clients.jedis.exceptions.JedisException;

/**
 * A Redis Cluster: some nodes that are known beforehand, and how to ask one of all which slots are
 * where. The credentials of the first seed are those of every node that is found through them.
 */
record ClusterSeeds(List<RedisServerAddress> seeds) implements RedisEndpoint {
    @Override
    public String maskedAddress() {
        return seeds.stream()
                .map(RedisServerAddress::maskedAddress)
                .collect(Collectors.joining(","));
    }

    @Override
    public List<String> secrets() {
        return seeds.stream().flatMap(seed -> seed.secrets().stream()).toList();
    }

    @Override
    public boolean mayMove() {
        return true;
    }

    /** A master, whichever: notifications reach every node. */
    @Override
    public RedisServerAddress resolve() {
        List<NodeAddress> masters =
                new ArrayList<>(fetchSlotMap(Set.of(), Set.of()).masters());
        return server(masters.get(ThreadLocalRandom.current().nextInt(masters.size())));
    }

    /**
     * Return the address of a node: a seed has its own credentials, another node those of the first
     * seed.
     */
    RedisServerAddress server(NodeAddress node) {
        return seeds.stream()
                .filter(seed -> seed.host().equals(node.host()) && seed.port() == node.port())
                .findFirst()
                .orElseGet(() -> seeds.get(0).withAddress(node.host(), node.port()));
    }

    /**
     * Asks one node after the other, {@code known} ones and seeds, those called {@code dead} last.
     * Throws {@link NoServerReachable}.
     */
    SlotMap fetchSlotMap(Collection<NodeAddress> known, Set<NodeAddress> dead) {
        BusException worst = null;
        for (NodeAddress node : nodesToAsk(known, dead)) {
            RedisServerAddress server = server(node);
            try {
                List<?> reply = (List<?>)
                        JedisConnection.ask(server, RedisCall.command("CLUSTER", "SLOTS"));
                if (!reply.isEmpty()) {
                    return SlotMap.parse(reply, server.host());
                }
                worst = worstError(
                        BusException.of(
                                ErrorKind.LINK_LOST,
                                "url",
                                server.maskedAddress(),
                                "reason",
                                "this node knows of no slots; is the cluster formed?"),
                        worst);
            } catch (JedisException error) {
                if (String.valueOf(error.getMessage()).contains("cluster support disabled")) {
                    throw BusException.configError(
                            "redis.layout is cluster, but " + server.maskedAddress()
                                    + " is no node of a cluster; leave redis.layout at direct");
                }
                worst = worstError(ErrorTranslator.translate(error, server), worst);
            }
        }
        if (!worst.retriable()) {
            throw worst;
        }
        throw new NoServerReachable("no node of the cluster answers: "
                + worst.getMessageParameters().get("reason"));
    }

    private List<NodeAddress> nodesToAsk(Collection<NodeAddress> known, Set<NodeAddress> dead) {
        Set<NodeAddress> nodes = new LinkedHashSet<>(known);
        seeds.forEach(seed -> nodes.add(new NodeAddress(seed.host(), seed.port())));
        List<NodeAddress> order = new ArrayList<>(nodes);
        // Otherwise a node that is cut off and has an old map could be the first each time.
        Collections.shuffle(order);
        order.sort(Comparator.comparing(dead::contains));
        return order;
    }

    /** The error to report: that a node refuses us is reported rather than that another is down. */
    private static BusException worstError(BusException found, BusException before) {
        return before == null || before.retriable() ? found : before;
    }

    @Override
    public String toString() {
        return maskedAddress();
    }
}
