package busmq.spark.redis;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.Timer;
import java.util.TimerTask;
import java.util.concurrent.ConcurrentHashMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;

/**
 * Subscribes at one server for the bells of a process. Channels stay subscribed when their bell is removed, since the next batch has one of the
 * same queue; the first push to a channel without a bell unsubscribes it. The thread ends when there has been no bell for a while.
 */
final class Doorman {
    private static final Logger LOG = LoggerFactory.getLogger(Doorman.class);
    /**
     * Half-open links say nothing for ever: after so long in silence the connection is made anew. A link that is whole answers a PING before.
     * Shorter in tests.
     */
    private static final int SILENCE_MS = Integer.getInteger("busmq.silenceMs", 30_000);
    private static final Timer PINGS = new Timer("busmq-doorbell-ping", true);
    private static final long LINGER_NS = 30_000_000_000L;
    private static final long REFUSED_MS = 30_000;

    private final Endpoint endpoint;
    private final Map<String, Set<Bell>> bells = new ConcurrentHashMap<>();
    private final Map<String, Long> left = new HashMap<>();
    private Thread thread;
    private Wire wire;

    Doorman(Endpoint endpoint) {
        this.endpoint = endpoint;
    }

    synchronized void listen(String channel, Bell bell) {
        Set<Bell> listeners = bells.get(channel);
        if (listeners == null) {
            bells.put(channel, listeners = ConcurrentHashMap.newKeySet());
            say("SUBSCRIBE", channel);
        }
        listeners.add(bell);
        left.remove(channel);
        if (thread == null) {
            thread = new Thread(this::run, "busmq-doorbell");
            thread.setDaemon(true);
            thread.start();
        }
    }

    synchronized void forget(Bell bell) {
        bells.forEach((channel, listeners) -> {
            if (listeners.remove(bell) && listeners.isEmpty()) {
                left.put(channel, System.nanoTime());
            }
        });
    }

    boolean hears(String channel) {
        return bells.containsKey(channel);
    }

    private synchronized void say(Object... words) {
        if (wire == null) {
            return; // all are subscribed at the next connect
        }
        try {
            wire.send(Call.command(words), false);
            wire.push();
        } catch (JedisException error) {
            wire.end(); // the thread notices and connects anew
        }
    }

    private void run() {
        long pauseMs = 50;
        TimerTask ping = new TimerTask() {
            @Override
            public void run() {
                say("PING");
            }
        };
        PINGS.schedule(ping, SILENCE_MS / 3, SILENCE_MS / 3);
        while (stays()) {
            try {
                connect();
                pauseMs = 50;
                while (true) {
                    hear(wire.hear());
                }
            } catch (RuntimeException error) { // any kind: nothing would start this thread again
                BusException said = Refusals.translate(error, endpoint);
                LOG.debug("no notifications: {}", said.getMessage());
                if (said.kind() != ErrorKind.LINK_LOST) {
                    LOG.warn("Pushes are not heard, so queues are only polled: {}", said.getMessage());
                    pauseMs = REFUSED_MS;
                }
            }
            drop();
            pauseMs = sleep(pauseMs);
        }
        ping.cancel();
    }

    private synchronized boolean stays() {
        long now = System.nanoTime();
        boolean idle = bells.keySet().stream().allMatch(channel -> left.containsKey(channel) && now - left.get(channel) > LINGER_NS);
        if (idle) {
            bells.clear();
            left.clear();
            thread = null;
        }
        return !idle;
    }

    private void connect() {
        Wire fresh = Wire.dial(endpoint, SILENCE_MS);
        synchronized (this) {
            wire = fresh;
            bells.keySet().forEach(channel -> say("SUBSCRIBE", channel));
        }
    }

    private synchronized void drop() {
        if (wire != null) {
            wire.end();
            wire = null;
        }
    }

    private void hear(Object said) {
        if (said instanceof JedisDataException refused) {
            throw refused;
        }
        if (!(said instanceof List<?> words) || words.size() < 3 || !(words.get(1) instanceof byte[] name)) {
            return;
        }
        String channel = new String(name, StandardCharsets.UTF_8);
        Set<Bell> listeners = bells.get(channel);
        if (listeners == null) {
            return;
        }
        if (listeners.isEmpty()) {
            unsubscribe(channel);
        }
        listeners.forEach(Bell::ring); // the confirmation rings too, as it should: pushes before it sent no notification
    }

    private synchronized void unsubscribe(String channel) {
        Long since = left.get(channel);
        if (since != null && System.nanoTime() - since > LINGER_NS) {
            bells.remove(channel);
            left.remove(channel);
            say("UNSUBSCRIBE", channel);
        }
    }

    private static long sleep(long pauseMs) {
        try {
            Thread.sleep(pauseMs);
        } catch (InterruptedException error) {
            LOG.debug("{} goes on: it ends when nobody listens any more", Thread.currentThread().getName());
        }
        return Math.min(1_000, 2 * pauseMs);
    }
}
