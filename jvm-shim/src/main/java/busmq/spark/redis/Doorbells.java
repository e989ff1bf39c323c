package busmq.spark.redis;

import busmq.spark.core.QueueKeys;
import busmq.spark.options.RedisOptions;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Hears pushes by pub/sub: one daemon thread and one connection per process and server, shared by all readers. It only makes things faster:
 * while it cannot connect its bells are silent, and readers go on by polling.
 */
public final class Doorbells {
    private static final Map<RedisOptions, Map<Integer, Doorman>> MEN = new HashMap<>();

    private Doorbells() {
    }

    /**
     * A bell for some queues, each with the index of its server ({@link Links#locate}). Returns at once; rings when Redis has confirmed a
     * subscription that is new.
     */
    public static Bell bell(RedisOptions options, Map<String, Integer> queues) {
        Bell bell = new Bell(Doorbells::leave);
        synchronized (MEN) {
            Map<Integer, Doorman> men = MEN.computeIfAbsent(options, key -> new HashMap<>());
            List<Endpoint> servers = men.isEmpty() ? Address.endpoints(options) : List.of();
            for (int i = 0; i < servers.size(); i++) {
                men.put(i, new Doorman(servers.get(i)));
            }
            queues.forEach((queue, server) -> men.get(server).listen(new QueueKeys(queue, options.cluster()).available(), bell));
        }
        return bell;
    }

    /** Whether this process listens to a queue, perhaps for a reader that is gone. */
    public static boolean hears(RedisOptions options, String queue) {
        String channel = new QueueKeys(queue, options.cluster()).available();
        synchronized (MEN) {
            return MEN.getOrDefault(options, Map.of()).values().stream().anyMatch(man -> man.hears(channel));
        }
    }

    private static void leave(Bell bell) {
        synchronized (MEN) {
            MEN.values().forEach(men -> men.values().forEach(man -> man.forget(bell)));
        }
    }
}
