package busmq.spark.redis;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.ErrorKind;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ThreadLocalRandom;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisNoScriptException;
import redis.clients.jedis.util.JedisClusterCRC16;

/**
 * The calls of one step in a cluster: which of them go to which node next, and what the replies
 * mean (as {@code redis_io/cluster_rules.py}).
 *
 * <p>Rule 1. A call that was refused (MOVED, ASK, TRYAGAIN, NOSCRIPT …) was not executed, so it may
 * always go again.
 *
 * <p>Rule 2. A call whose reply was lost may have been executed: it goes again only if it is
 * idempotent, else the step is in doubt.
 *
 * <p>Rule 3. Calls of one slot keep their order. If a node refused one call and executed a later
 * one, the step is in doubt, not reordered.
 */
final class ClusterPipeline {
    /**
     * After so many redirections without a pause the nodes disagree: then waiting helps, and asking
     * on does not.
     */
    private static final int MAX_REDIRECTIONS = SharedPythonConstants.intNumber("maxRedirections");

    private static final int NO_SLOT = -1;
    private static final Set<String> KEYLESS_COMMANDS =
            SharedPythonConstants.words("keylessCommands");

    /** The calls that are still to be answered. */
    final Set<Integer> pending = new TreeSet<>();
    /** Nodes that did not answer in the last round. */
    final Set<NodeAddress> deadNodes = new HashSet<>();
    /** Slots that have moved, and where to, from the MOVED replies to this step. */
    final Map<Integer, NodeAddress> movedSlots = new HashMap<>();
    /** The calls that go with the text of their script. */
    final Set<Integer> withScriptText = new HashSet<>();
    /** Whether the map should be read anew before the next round. */
    boolean mapIsStale;
    /** The error for which the next round has to wait; null: none. */
    BusException retryReason;

    private final List<RedisCall> calls;
    private final RedisEndpoint endpoint;
    private final int[] slots;
    private final Object[] replies;
    private final Map<Integer, NodeAddress> askNodes = new HashMap<>();
    private BusException doubtError;
    private int redirections;

    ClusterPipeline(List<RedisCall> calls, RedisEndpoint endpoint) {
        this.calls = calls;
        this.endpoint = endpoint;
        this.replies = new Object[calls.size()];
        this.slots = calls.stream().mapToInt(ClusterPipeline::slotOf).toArray();
        boolean ordered = calls.size() > 1 && !calls.stream().allMatch(RedisCall::idempotent);
        for (int place = 0; place < calls.size(); place++) {
            pending.add(place);
            if (ordered) {
                withScriptText.add(place); // scripts by digest could be refused one by one
            }
        }
    }

    private static int slotOf(RedisCall call) {
        if (call.script() != null) {
            return call.keyCount() == 0
                    ? NO_SLOT
                    : JedisClusterCRC16.getSlot(call.words().get(0));
        }
        boolean keyless = call.words().size() < 2
                || KEYLESS_COMMANDS.contains(
                        new String(call.words().get(0)).toUpperCase(Locale.ROOT));
        return keyless ? NO_SLOT : JedisClusterCRC16.getSlot(call.words().get(1));
    }

    /**
     * Return the calls of this round, by node. Calls whose slot no node serves stay pending, and
     * the step waits.
     */
    List<NodeBatch> batches(SlotMap map) {
        mapIsStale = false;
        retryReason = null;
        deadNodes.clear();
        Map<NodeAddress, NodeBatch> found = new LinkedHashMap<>();
        NodeAddress anywhere = nodeForKeyless(map);
        for (int place : pending) {
            NodeAddress redirected = askNodes.remove(place);
            NodeAddress node = redirected != null
                    ? redirected
                    : slots[place] == NO_SLOT ? anywhere : map.owner(slots[place]);
            if (node == null) {
                mapIsStale = true;
                retryReason = linkLostError("no node serves slot " + slots[place]);
            } else {
                found.computeIfAbsent(node, NodeBatch::new).add(place, redirected != null);
            }
        }
        return new ArrayList<>(found.values());
    }

    /**
     * Return the node for calls without a key: the node of the other calls, so that they are
     * executed beside their queue.
     */
    private NodeAddress nodeForKeyless(SlotMap map) {
        for (int place : pending) {
            if (slots[place] != NO_SLOT && map.owner(slots[place]) != null) {
                return map.owner(slots[place]);
            }
        }
        List<NodeAddress> masters = new ArrayList<>(map.masters());
        return masters.isEmpty()
                ? null
                : masters.get(ThreadLocalRandom.current().nextInt(masters.size()));
    }

    /** The replies to a batch. */
    void addReplies(NodeBatch batch, List<Object> answers) {
        Map<Integer, Boolean> refused = new HashMap<>();
        for (int i = 0; i < answers.size(); i++) {
            int place = batch.places().get(i);
            int slot = slots[place];
            boolean once = !calls.get(place).idempotent();
            if (shouldRetry(place, batch.node(), answers.get(i))) {
                refused.merge(slot, once, Boolean::logicalOr);
                continue;
            }
            pending.remove(place);
            replies[place] = answers.get(i);
            if (slot != NO_SLOT && refused.containsKey(slot) && (once || refused.get(slot))) {
                doubtError = linkLostError(
                        "slot " + slot + " changed its node between two calls of one step");
            }
        }
    }

    /** The node could not be reached: nothing was sent. */
    void onNodeUnreachable(NodeBatch batch, BusException error) {
        deadNodes.add(batch.node());
        mapIsStale = true;
        retryReason = error;
    }

    /** The connection broke while the batch was under way. */
    void onConnectionLost(NodeBatch batch, BusException error) {
        onNodeUnreachable(batch, error);
        if (!batch.places().stream().allMatch(place -> calls.get(place).idempotent())) {
            doubtError = error;
        }
    }

    /** After a round: throws when the step is in doubt. */
    void throwIfFailed() {
        if (doubtError != null) {
            throw doubtError;
        }
    }

    /**
     * The replies, each error among them as one of ours; {@code unanswered} stands for those that
     * have none.
     */
    List<Object> repliesAndErrors(BusException unanswered) {
        pending.forEach(place -> replies[place] = unanswered);
        return Arrays.stream(replies)
                .map(reply -> reply instanceof JedisDataException refused
                        ? ErrorTranslator.translate(refused, endpoint)
                        : reply)
                .toList();
    }

    /** Whether the reply says that the call was not executed and should go again. */
    private boolean shouldRetry(int place, NodeAddress node, Object reply) {
        if (!(reply instanceof JedisDataException refused)) {
            return false;
        }
        Redirect redirect = Redirect.of(refused.getMessage(), node.host());
        if (redirect != null) {
            followRedirect(place, redirect);
            return true;
        }
        if (refused instanceof JedisNoScriptException && withScriptText.add(place)) {
            return true;
        }
        BusException error = ErrorTranslator.translate(refused, endpoint);
        if (calls.get(place).waitsFor(error)) {
            mapIsStale = true;
            retryReason = error;
            return true;
        }
        return false;
    }

    private void followRedirect(int place, Redirect found) {
        if (found.asking()) {
            askNodes.put(place, found.node());
        } else if (slots[place] != NO_SLOT) {
            movedSlots.put(slots[place], found.node());
        }
        if (++redirections > MAX_REDIRECTIONS * calls.size()) {
            mapIsStale = true;
            retryReason =
                    linkLostError("slot " + slots[place] + " is redirected again and again, now to "
                            + found.node().host() + ":" + found.node().port());
        }
    }

    private BusException linkLostError(String reason) {
        return BusException.of(
                ErrorKind.LINK_LOST, "url", endpoint.maskedAddress(), "reason", reason);
    }
}
