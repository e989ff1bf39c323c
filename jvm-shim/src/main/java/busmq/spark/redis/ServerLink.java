package busmq.spark.redis;

import busmq.spark.ErrorKind;
import java.util.ArrayList;
import java.util.List;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.exceptions.JedisNoScriptException;

/** A link to a server that is always the same, or to a sentinel group's master. */
final class ServerLink extends GuardedLink {
    /** After so long without a call the connection is tried before one that must not be repeated. */
    private static final long FRESH_NS = 20_000_000;
    private static final Call PING = Call.command("PING");

    private final Endpoint endpoint;
    private Wire wire;
    private long used;

    ServerLink(Endpoint endpoint) {
        this.endpoint = endpoint;
    }

    @Override
    List<Object> step(List<Call> calls) {
        boolean repeatable = calls.stream().allMatch(Call::idempotent);
        Patience patience = new Patience(endpoint);
        while (true) {
            try {
                open(repeatable);
            } catch (JedisException | NobodyAnswers error) {
                close();
                patience.pause(error);
                continue;
            }
            List<Object> replies;
            try {
                replies = exchange(calls);
            } catch (JedisException error) {
                close();
                if (!repeatable) {
                    throw Refusals.translate(error, endpoint);
                }
                patience.unanswered(error);
                continue;
            }
            JedisDataException failed = firstError(replies);
            if (failed == null) {
                return replies;
            }
            boolean notNow = Refusals.translate(failed, endpoint).kind() == ErrorKind.LINK_LOST;
            if (!notNow || !(repeatable || calls.size() == 1)) {
                throw Refusals.translate(failed, endpoint);
            }
            if (endpoint.moves()) {
                close(); // who is master is asked anew
            }
            patience.pause(failed); // LOADING and its like: not executed
        }
    }

    private void open(boolean repeatable) {
        if (wire != null && !repeatable && System.nanoTime() - used > FRESH_NS) {
            try {
                wire.send(PING, false);
                wire.read(1);
            } catch (JedisException error) {
                close(); // better known before a push is sent than after
            }
        }
        if (wire == null) {
            wire = Wire.dial(endpoint);
        }
    }

    private List<Object> exchange(List<Call> calls) {
        // Where order counts scripts travel whole, unless there is one only: a flushed cache could refuse some of them.
        boolean whole = calls.size() > 1 && calls.stream().anyMatch(call -> !call.idempotent() && call.script() != null);
        calls.forEach(call -> wire.send(call, whole));
        List<Object> replies = new ArrayList<>(wire.read(calls.size()));
        List<Integer> unknown = new ArrayList<>();
        for (int i = 0; i < replies.size(); i++) {
            if (replies.get(i) instanceof JedisNoScriptException) {
                unknown.add(i);
                wire.send(calls.get(i), true);
            }
        }
        if (!unknown.isEmpty()) {
            List<Object> again = wire.read(unknown.size());
            for (int i = 0; i < unknown.size(); i++) {
                replies.set(unknown.get(i), again.get(i));
            }
        }
        used = System.nanoTime();
        return replies;
    }

    static JedisDataException firstError(List<Object> replies) {
        for (Object reply : replies) {
            if (reply instanceof JedisDataException error) {
                return error;
            }
        }
        return null;
    }

    @Override
    public void close() {
        if (wire != null) {
            wire.end();
            wire = null;
        }
    }
}
