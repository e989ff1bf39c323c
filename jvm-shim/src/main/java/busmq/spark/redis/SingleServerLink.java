package busmq.spark.redis;

import busmq.spark.BusException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.exceptions.JedisNoScriptException;

/** A link to a server that is always the same, or to a sentinel group's master. */
final class SingleServerLink extends SingleCallerLink {
    /**
     * After so long without a call the connection is tested before a call that must not be
     * repeated.
     */
    private static final long UNTESTED_NS = 20_000_000;

    private static final RedisCall PING = RedisCall.command("PING");

    private final RedisEndpoint endpoint;
    private JedisConnection connection;
    private long lastUsedNs;

    SingleServerLink(RedisEndpoint endpoint) {
        this.endpoint = endpoint;
    }

    @Override
    List<Object> execute(List<RedisCall> calls) {
        Step step = new Step(calls);
        try {
            while (!step.unanswered.isEmpty()) {
                step.runRound();
            }
        } catch (BusException error) {
            step.unanswered.forEach(place -> step.replies[place] = error);
        }
        return Arrays.asList(step.replies);
    }

    /** Calls that are sent together, and again as long as they may be repeated. */
    private final class Step {
        private final List<RedisCall> calls;
        private final Object[] replies;
        private final boolean repeatable;
        private final LinkRetry retry = new LinkRetry();
        /** The places of those that are still to be answered. */
        private List<Integer> unanswered;

        private Step(List<RedisCall> calls) {
            this.calls = calls;
            replies = new Object[calls.size()];
            repeatable = calls.stream().allMatch(RedisCall::idempotent);
            unanswered = IntStream.range(0, replies.length).boxed().toList();
        }

        private void runRound() {
            try {
                ensureConnected(repeatable);
            } catch (JedisException | NoServerReachable error) {
                close();
                retry.pause(error, endpoint);
                return;
            }
            try {
                applyReplies(sendAndRead(unanswered.stream().map(calls::get).toList()));
            } catch (JedisException error) {
                close();
                if (!repeatable) {
                    throw ErrorTranslator.translate(error, endpoint);
                }
                retry.onNoReply();
                retry.pause(error, endpoint);
            }
        }

        private void applyReplies(List<Object> found) {
            // Later calls are sent again, too: calls are executed in their order.
            int refusedAt = -1;
            BusException why = null;
            for (int i = 0; i < found.size(); i++) {
                boolean refused = found.get(i) instanceof JedisDataException;
                Object reply = refused
                        ? ErrorTranslator.translate((JedisDataException) found.get(i), endpoint)
                        : found.get(i);
                replies[unanswered.get(i)] = reply;
                if (refused
                        && calls.get(unanswered.get(i)).waitsFor((BusException) reply)
                        && (repeatable || calls.size() == 1)) {
                    refusedAt = refusedAt < 0 ? i : refusedAt;
                    why = (BusException) reply;
                }
            }
            unanswered =
                    refusedAt < 0 ? List.of() : unanswered.subList(refusedAt, unanswered.size());
            if (why != null) {
                if (endpoint.mayMove()) {
                    close(); // the next connect asks which server is master
                }
                // LOADING and other errors of calls that were not executed.
                retry.pause(why, endpoint);
            }
        }
    }

    private void ensureConnected(boolean repeatable) {
        if (connection != null && !repeatable && System.nanoTime() - lastUsedNs > UNTESTED_NS) {
            try {
                connection.bufferCall(PING, false);
                connection.flushAndRead(1);
            } catch (JedisException error) {
                close(); // so that a broken connection is noticed before a push is sent on it
            }
        }
        if (connection == null) {
            connection = JedisConnection.dial(endpoint);
        }
    }

    private List<Object> sendAndRead(List<RedisCall> calls) {
        // Where order counts, scripts are sent with their text, unless there is only one: after a
        // flush of its cache Redis would refuse some.
        boolean whole = calls.size() > 1
                && calls.stream().anyMatch(call -> !call.idempotent() && call.script() != null);
        calls.forEach(call -> connection.bufferCall(call, whole));
        List<Object> replies = new ArrayList<>(connection.flushAndRead(calls.size()));
        List<Integer> unknown = new ArrayList<>();
        boolean repeatable = calls.stream().allMatch(RedisCall::idempotent);
        for (int i = 0; i < replies.size(); i++) {
            // In their order, as above.
            if (replies.get(i) instanceof JedisNoScriptException
                    || (repeatable && !unknown.isEmpty())) {
                unknown.add(i);
                connection.bufferCall(calls.get(i), true);
            }
        }
        if (!unknown.isEmpty()) {
            List<Object> again = connection.flushAndRead(unknown.size());
            for (int i = 0; i < unknown.size(); i++) {
                replies.set(unknown.get(i), again.get(i));
            }
        }
        lastUsedNs = System.nanoTime();
        return replies;
    }

    @Override
    public void close() {
        if (connection != null) {
            connection.closeWithoutQuit();
            connection = null;
        }
    }
}
