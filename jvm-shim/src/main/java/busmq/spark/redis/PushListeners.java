package busmq.spark.redis;

import busmq.spark.core.QueueKeys;
import busmq.spark.options.RedisOptions;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Notifies of pushes by pub/sub: one daemon thread and one connection per process and server,
 * shared by all readers. It only makes things faster: while it cannot connect no signal comes, and
 * readers go on by polling.
 */
public final class PushListeners {
    private static final Map<RedisOptions, Map<Integer, RedisPushListenerThread>> LISTENERS =
            new HashMap<>();

    private PushListeners() {}

    /**
     * A signal for some queues, each with the index of its server ({@link RedisLinks#locate}).
     * Returns at once; signalled when Redis has confirmed a subscription that is new.
     */
    public static PushSignal subscribe(RedisOptions options, Map<String, Integer> queues) {
        PushSignal signal = new PushSignal(PushListeners::stopListening);
        synchronized (LISTENERS) {
            Map<Integer, RedisPushListenerThread> listeners =
                    LISTENERS.computeIfAbsent(options, key -> new HashMap<>());
            List<RedisEndpoint> servers =
                    listeners.isEmpty() ? RedisLayout.endpoints(options) : List.of();
            for (int i = 0; i < servers.size(); i++) {
                listeners.put(i, new RedisPushListenerThread(servers.get(i)));
            }
            queues.forEach((queue, server) -> listeners
                    .get(server)
                    .addSignal(new QueueKeys(queue, options.cluster()).available(), signal));
        }
        return signal;
    }

    /** Whether this process listens to a queue, perhaps for a reader that is gone. */
    public static boolean isSubscribed(RedisOptions options, String queue) {
        String channel = new QueueKeys(queue, options.cluster()).available();
        synchronized (LISTENERS) {
            return LISTENERS.getOrDefault(options, Map.of()).values().stream()
                    .anyMatch(listener -> listener.isSubscribed(channel));
        }
    }

    private static void stopListening(PushSignal signal) {
        synchronized (LISTENERS) {
            LISTENERS.values().forEach(listeners -> listeners
                    .values()
                    .forEach(listener -> listener.removeSignal(signal)));
        }
    }
}
