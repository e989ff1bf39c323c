package busmq.spark.redis;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.exceptions.JedisNoScriptException;

/** A link to a server that is always the same, or to a sentinel group's master. */
final class ServerLink extends GuardedLink {
    /** After so long without a call the connection is tried before one that must not be repeated. */
    private static final long FRESH_NS = 20_000_000;
    private static final Call PING = Call.command("PING");

    private final Endpoint endpoint;
    private JedisConnection wire;
    private long used;

    ServerLink(Endpoint endpoint) {
        this.endpoint = endpoint;
    }

    @Override
    List<Object> step(List<Call> calls) {
        Step step = new Step(calls);
        try {
            while (!step.open.isEmpty()) {
                step.round();
            }
        } catch (BusException error) {
            step.open.forEach(place -> step.replies[place] = error);
        }
        return Arrays.asList(step.replies);
    }

    /** Calls that are sent together, and again as long as that makes sense. */
    private final class Step {
        private final List<Call> calls;
        private final Object[] replies;
        private final boolean repeatable;
        private final Retry retry = new Retry();
        /** The places of those that are still to be answered. */
        private List<Integer> open;

        private Step(List<Call> calls) {
            this.calls = calls;
            replies = new Object[calls.size()];
            repeatable = calls.stream().allMatch(Call::idempotent);
            open = IntStream.range(0, replies.length).boxed().toList();
        }

        private void round() {
            try {
                open(repeatable);
            } catch (JedisException | ServerUnreachable error) {
                close();
                retry.pause(error, endpoint);
                return;
            }
            try {
                take(exchange(open.stream().map(calls::get).toList()));
            } catch (JedisException error) {
                close();
                if (!repeatable) {
                    throw ErrorTranslator.translate(error, endpoint);
                }
                retry.unanswered();
                retry.pause(error, endpoint);
            }
        }

        private void take(List<Object> found) {
            int refusedAt = -1; // what follows it is sent again, too: calls are executed in their order
            BusException why = null;
            for (int i = 0; i < found.size(); i++) {
                boolean refused = found.get(i) instanceof JedisDataException;
                Object reply = refused ? ErrorTranslator.translate((JedisDataException) found.get(i), endpoint) : found.get(i);
                replies[open.get(i)] = reply;
                if (refused && ((BusException) reply).kind() == ErrorKind.LINK_LOST && (repeatable || calls.size() == 1)) {
                    refusedAt = refusedAt < 0 ? i : refusedAt;
                    why = (BusException) reply;
                }
            }
            open = refusedAt < 0 ? List.of() : open.subList(refusedAt, open.size());
            if (why != null) {
                if (endpoint.moves()) {
                    close(); // who is master is asked anew
                }
                retry.pause(why, endpoint); // LOADING and its like: not executed
            }
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
            wire = JedisConnection.dial(endpoint);
        }
    }

    private List<Object> exchange(List<Call> calls) {
        // Where order counts scripts travel whole, unless there is one only: a flushed cache could refuse some of them.
        boolean whole = calls.size() > 1 && calls.stream().anyMatch(call -> !call.idempotent() && call.script() != null);
        calls.forEach(call -> wire.send(call, whole));
        List<Object> replies = new ArrayList<>(wire.read(calls.size()));
        List<Integer> unknown = new ArrayList<>();
        boolean repeatable = calls.stream().allMatch(Call::idempotent);
        for (int i = 0; i < replies.size(); i++) {
            if (replies.get(i) instanceof JedisNoScriptException || (repeatable && !unknown.isEmpty())) { // in their order, as above
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

    @Override
    public void close() {
        if (wire != null) {
            wire.end();
            wire = null;
        }
    }
}
