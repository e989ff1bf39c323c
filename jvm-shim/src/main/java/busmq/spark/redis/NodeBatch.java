package busmq.spark.redis;

import java.util.ArrayList;
import java.util.List;

/**
 * The calls to one node of a cluster in one write: {@code places} are positions in the step,
 * {@code asking} the positions that need ASKING before.
 */
record NodeBatch(NodeAddress node, List<Integer> places, List<Boolean> asking) {
    private static final RedisCall ASKING = RedisCall.command("ASKING");

    NodeBatch(NodeAddress node) {
        this(node, new ArrayList<>(), new ArrayList<>());
    }

    void add(int place, boolean ask) {
        places.add(place);
        asking.add(ask);
    }

    /** Writes the calls and returns how many replies will come. */
    int send(JedisConnection connection, List<RedisCall> calls, java.util.Set<Integer> whole) {
        int sent = 0;
        for (int i = 0; i < places.size(); i++) {
            if (asking.get(i)) {
                connection.bufferCall(ASKING, false);
                sent++;
            }
            connection.bufferCall(calls.get(places.get(i)), whole.contains(places.get(i)));
            sent++;
        }
        connection.flushBuffer();
        return sent;
    }

    /** The replies of the calls alone. */
    List<Object> withoutAskingReplies(List<Object> all) {
        List<Object> own = new ArrayList<>(places.size());
        int at = 0;
        for (boolean ask : asking) {
            at += ask ? 1 : 0;
            own.add(all.get(at++));
        }
        return own;
    }
}
