package busmq.spark.redis;

import busmq.spark.BusException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.Timer;
import java.util.TimerTask;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Pattern;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;

/**
 * Subscribes at one server for the push signals of a process. Channels stay subscribed when their
 * signal is removed, since the next batch has one of the same queue; the first push to a channel
 * without a signal unsubscribes it. The thread ends when there has been no signal for a while.
 */
final class RedisPushListenerThread {
    private static final Logger LOG = LoggerFactory.getLogger(RedisPushListenerThread.class);
    /**
     * Nothing ever arrives on a half-open connection: after so long without a reply it is made
     * anew. A working one has had the reply to a PING before that. Shorter in tests.
     */
    private static final int SILENCE_MS = Integer.getInteger("busmq.silenceMs", 30_000);

    private static final Pattern REFUSED_NICETY =
            Pattern.compile("(?i)(?:the '|unknown command ['`])(?:ping|unsubscribe)['`|]");
    private static final Timer PINGS = new Timer("busmq-pubsub-ping", true);
    private static final long UNUSED_NS = 30_000_000_000L;
    private static final long REFUSED_PAUSE_MS = 30_000;

    private final RedisEndpoint endpoint;
    private final Map<String, Set<PushSignal>> signals = new ConcurrentHashMap<>();
    private final Map<String, Long> unusedSince = new HashMap<>();
    private Thread thread;
    private JedisConnection connection;

    RedisPushListenerThread(RedisEndpoint endpoint) {
        this.endpoint = endpoint;
    }

    synchronized void addSignal(String channel, PushSignal signal) {
        Set<PushSignal> listeners = signals.get(channel);
        if (listeners == null) {
            signals.put(channel, listeners = ConcurrentHashMap.newKeySet());
            sendIfConnected("SUBSCRIBE", channel);
        }
        listeners.add(signal);
        unusedSince.remove(channel);
        if (thread == null) {
            thread = new Thread(this::run, "busmq-pubsub");
            thread.setDaemon(true);
            thread.start();
        }
    }

    synchronized void removeSignal(PushSignal signal) {
        signals.forEach((channel, listeners) -> {
            if (listeners.remove(signal) && listeners.isEmpty()) {
                unusedSince.put(channel, System.nanoTime());
            }
        });
    }

    boolean isSubscribed(String channel) {
        return signals.containsKey(channel);
    }

    private synchronized void sendIfConnected(Object... words) {
        if (connection == null) {
            return; // all are subscribed at the next connect
        }
        try {
            connection.bufferCall(RedisCall.command(words), false);
            connection.flushBuffer();
        } catch (JedisException error) {
            connection.closeWithoutQuit(); // the thread notices and connects anew
        }
    }

    private void run() {
        LinkRetry retry = new LinkRetry();
        TimerTask ping = new TimerTask() {
            @Override
            public void run() {
                sendIfConnected("PING");
            }
        };
        PINGS.schedule(ping, SILENCE_MS / 3, SILENCE_MS / 3);
        while (shouldKeepRunning()) {
            long pauseMs;
            try {
                connect();
                retry = new LinkRetry();
                while (true) {
                    signalListeners(connection.receiveMessage());
                }
            } catch (RuntimeException error) { // any kind: nothing would start this thread again
                BusException failure = ErrorTranslator.translate(error, endpoint);
                LOG.debug("no notifications: {}", failure.getMessage());
                pauseMs = failure.kind().isLinkLost() ? retry.nextMs() : REFUSED_PAUSE_MS;
                if (pauseMs == REFUSED_PAUSE_MS) {
                    LOG.warn(
                            "Pushes are not received, so queues are only polled: {}",
                            failure.getMessage());
                }
            }
            disconnect();
            try {
                Thread.sleep(pauseMs);
            } catch (InterruptedException error) {
                LOG.debug(
                        "{} goes on: it ends when there is no listener any more",
                        Thread.currentThread().getName());
            }
        }
        ping.cancel();
    }

    private synchronized boolean shouldKeepRunning() {
        long now = System.nanoTime();
        boolean idle = signals.keySet().stream()
                .allMatch(channel -> unusedSince.containsKey(channel)
                        && now - unusedSince.get(channel) > UNUSED_NS);
        if (idle) {
            signals.clear();
            unusedSince.clear();
            thread = null;
        }
        return !idle;
    }

    private void connect() {
        JedisConnection fresh = JedisConnection.dial(endpoint, SILENCE_MS);
        synchronized (this) {
            connection = fresh;
            signals.keySet().forEach(channel -> sendIfConnected("SUBSCRIBE", channel));
        }
    }

    private synchronized void disconnect() {
        if (connection != null) {
            connection.closeWithoutQuit();
            connection = null;
        }
    }

    private void signalListeners(Object reply) {
        if (reply instanceof JedisDataException refused) {
            if (REFUSED_NICETY.matcher(refused.getMessage()).find()) {
                return; // an answer all the same: the connection works
            }
            throw refused;
        }
        if (!(reply instanceof List<?> words)
                || words.size() < 3
                || !(words.get(1) instanceof byte[] name)) {
            return;
        }
        String channel = new String(name, StandardCharsets.UTF_8);
        Set<PushSignal> listeners = signals.get(channel);
        if (listeners == null) {
            return;
        }
        if (listeners.isEmpty()) {
            unsubscribeIfUnused(channel);
        }
        // The confirmation signals too, as it should: pushes before it sent no notification.
        listeners.forEach(PushSignal::signal);
    }

    private synchronized void unsubscribeIfUnused(String channel) {
        Long since = unusedSince.get(channel);
        if (since != null && System.nanoTime() - since > UNUSED_NS) {
            signals.remove(channel);
            unusedSince.remove(channel);
            sendIfConnected("UNSUBSCRIBE", channel);
        }
    }
}
