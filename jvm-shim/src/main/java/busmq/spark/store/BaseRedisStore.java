package busmq.spark.store;

import busmq.spark.core.QueueKeys;
import busmq.spark.options.RedisOptions;
import busmq.spark.redis.RedisCall;
import busmq.spark.redis.RedisLink;
import busmq.spark.redis.RedisLinks;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.function.Predicate;

/**
 * Which server has which queue, and calls over many queues: those of a server in one round trip.
 * Not for two threads at once.
 */
public abstract class BaseRedisStore implements AutoCloseable {
    final RedisLinks links;
    final boolean cluster;
    final Map<String, Integer> servers = new HashMap<>();

    /** Nothing is connected yet. */
    BaseRedisStore(RedisOptions options) {
        links = RedisLinks.fromPool(options);
        cluster = options.cluster();
    }

    public QueueKeys keys(String queue) {
        return links.keys(queue);
    }

    /** The link of a server by its index. */
    public RedisLink link(int server) {
        return links.link(server);
    }

    /** Sets the server of a queue, which the caller has found out. */
    public void setServer(String queue, int server) {
        servers.put(queue, server);
    }

    /** The link of a queue. */
    public RedisLink linkOf(String queue) {
        return link(locate(List.of(queue)).get(queue));
    }

    /** The index of the server of each queue. */
    public Map<String, Integer> locate(Collection<String> queues) {
        List<String> unknown =
                queues.stream().filter(queue -> !servers.containsKey(queue)).toList();
        if (!unknown.isEmpty()) {
            servers.putAll(links.locate(unknown));
        }
        Map<String, Integer> found = new LinkedHashMap<>();
        queues.forEach(queue -> found.put(queue, servers.get(queue)));
        return found;
    }

    /** The {@code maxmemory-policy} of every server; empty where the right to ask is missing. */
    public List<String> evictionPolicies() {
        return links.evictionPolicies();
    }

    /** The known servers of queues. */
    public Map<String, FailureDomain> failureDomains(Collection<String> queues) {
        Map<String, FailureDomain> found = new HashMap<>();
        locate(queues)
                .forEach((queue, server) ->
                        found.put(queue, new FailureDomain(server, links.nodeOf(queue, server))));
        return found;
    }

    /** Every queue there is whose name is accepted, sorted. */
    public List<String> discover(Predicate<String> accept) {
        return discover(accept, () -> {});
    }

    /**
     * Discover queues; {@code pace} runs between two steps of the walk over the keys, and may wait.
     */
    public List<String> discover(Predicate<String> accept, Runnable pace) {
        List<String> found = new ArrayList<>();
        links.discover(pace).forEach((queue, server) -> {
            if (accept.test(queue)) {
                servers.put(queue, server);
                found.add(queue);
            }
        });
        return found;
    }

    @Override
    public void close() {
        links.close();
    }

    interface ReplyParser<T> {
        T read(Object reply, int at, String queue);
    }

    /**
     * Calls over at most so many queues of a server each, all servers' in one round trip each;
     * every answer under its queue.
     */
    <T> Map<String, T> askAbout(
            Collection<String> queues,
            int most,
            Function<List<String>, RedisCall> call,
            ReplyParser<T> read) {
        Map<Integer, List<String>> groups = new HashMap<>();
        locate(queues).forEach((queue, server) -> groups.computeIfAbsent(
                        server, index -> new ArrayList<>())
                .add(queue));
        Map<String, T> found = new LinkedHashMap<>();
        groups.forEach((server, group) -> {
            List<List<String>> parts = slices(group, cluster ? 1 : most);
            List<Object> replies = link(server).runAll(parts.stream().map(call).toList());
            for (int i = 0; i < parts.size(); i++) {
                for (int at = 0; at < parts.get(i).size(); at++) {
                    String queue = parts.get(i).get(at);
                    found.put(queue, read.read(replies.get(i), at, queue));
                }
            }
        });
        return found;
    }

    private static List<List<String>> slices(List<String> queues, int most) {
        List<List<String>> parts = new ArrayList<>();
        for (int at = 0; at < queues.size(); at += Math.min(most, queues.size())) {
            parts.add(queues.subList(at, (int) Math.min((long) at + most, queues.size())));
        }
        return parts;
    }

    List<String> keysOf(List<String> queues, Function<QueueKeys, List<String>> which) {
        return queues.stream()
                .flatMap(queue -> which.apply(keys(queue)).stream())
                .toList();
    }

    static Object[] idsOf(List<String> queues, Map<String, Long> ids) {
        return queues.stream().map(ids::get).toArray();
    }
}
