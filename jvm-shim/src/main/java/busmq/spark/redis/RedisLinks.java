package busmq.spark.redis;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import busmq.spark.core.QueueKeys;
import busmq.spark.core.ServerIndex;
import busmq.spark.options.RedisOptions;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.function.LongSupplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The links to every server of a bus, in the order of its URLs; a cluster is one. Not for two
 * threads at once: take some for each. After {@link #close} they may be another's, so every use is
 * an error then.
 */
public final class RedisLinks implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(RedisLinks.class);
    private static final int MOST_POOLED = 8;
    /**
     * Keys that Redis looks at in one step of a walk over all of them: about half a millisecond.
     */
    private static final int KEYS_PER_SCAN = 1000;

    private static final long MOST_IDLE_NS = 60_000_000_000L;
    private static final Map<RedisOptions, Deque<RedisLinks>> POOL = new HashMap<>();
    /** Another one in tests. */
    static LongSupplier clock = System::nanoTime;

    private final RedisOptions options;
    private final List<SingleCallerLink> links;
    private volatile boolean inUse;
    private long returnedNs;

    private RedisLinks(RedisOptions options) {
        this.options = options;
        this.links = RedisLayout.endpoints(options).stream()
                .<SingleCallerLink>map(endpoint -> endpoint instanceof ClusterSeeds seeds
                        ? new ClusterLink(seeds)
                        : new SingleServerLink(endpoint))
                .toList();
    }

    /**
     * Links to the servers of the options, from a pool of this process or new, then not connected
     * yet; {@link #close} gives them back. Throws a BUSMQ_CONFIG error for a bad address.
     */
    public static RedisLinks fromPool(RedisOptions options) {
        RedisLinks found;
        synchronized (POOL) {
            Deque<RedisLinks> idle = POOL.get(options);
            found = idle == null ? null : idle.pollFirst();
        }
        if (found == null) {
            found = new RedisLinks(options);
        } else if (found.isIdleTooLong()) {
            found.closeAll(); // a firewall may have dropped the connections
        }
        found.inUse = true;
        return found;
    }

    /** In the order of the URLs. */
    public List<RedisLink> links() {
        return List.copyOf(openLinks());
    }

    /** The link of a queue by the index that {@link #locate} found. */
    public RedisLink link(int index) {
        return openLinks().get(index);
    }

    private List<SingleCallerLink> openLinks() {
        if (!inUse) {
            throw BusException.of(
                    ErrorKind.STATE,
                    "event",
                    "use",
                    "what",
                    "these links",
                    "state",
                    "closed",
                    "remedy",
                    "Open new ones");
        }
        return links;
    }

    /** The node of a cluster that has a queue, as far as is known; empty in another layout. */
    public String nodeOf(String queue, int index) {
        return links.get(index) instanceof ClusterLink cluster
                ? cluster.ownerAddress(keys(queue).metadata())
                : "";
    }

    /** The keys of a queue, as this layout spells them. */
    public QueueKeys keys(String queue) {
        return new QueueKeys(queue, options.cluster());
    }

    /**
     * The index of the server of each queue: the one that has it, else the one its name hashes to
     * (as {@code redis_io/queue_location.py}). Throws when a server does not answer: to guess then
     * would split a queue over two servers.
     */
    public Map<String, Integer> locate(Collection<String> queues) {
        return locate(queues, Map.of());
    }

    /**
     * Open links; {@code homes} has the servers of new queues that do not follow the hash of their
     * name.
     */
    public Map<String, Integer> locate(Collection<String> queues, Map<String, Integer> homes) {
        Map<String, Integer> found = new LinkedHashMap<>();
        if (links.size() == 1) {
            queues.forEach(queue -> found.put(queue, 0));
            return found;
        }
        List<String> names = List.copyOf(queues);
        List<RedisCall> questions = names.stream()
                .map(name -> RedisCall.command("EXISTS", keys(name).metadata()))
                .toList();
        List<List<Object>> answers = new ArrayList<>();
        openLinks().forEach(link -> answers.add(link.runAll(questions)));
        for (int i = 0; i < names.size(); i++) {
            int home = homeIndex(names.get(i));
            int place = (Long) answers.get(home).get(i) > 0
                    ? home
                    : homes.getOrDefault(names.get(i), home);
            for (int server = links.size() - 1;
                    server >= 0 && (Long) answers.get(home).get(i) == 0;
                    server--) {
                place = (Long) answers.get(server).get(i) > 0 ? server : place;
            }
            found.put(names.get(i), place);
        }
        return found;
    }

    private int homeIndex(String queue) {
        return ServerIndex.of(keys(queue).metadata(), links.size());
    }

    /**
     * Every queue that exists with the index of its server, sorted by name. Walks with SCAN, so
     * Redis is never blocked; {@code pace} runs between two steps, and may wait.
     */
    public SortedMap<String, Integer> discover(Runnable pace) {
        SortedMap<String, Integer> found = new TreeMap<>();
        for (int i = 0; i < links.size(); i++) {
            int server = i;
            List<List<String>> names = openLinks().get(i) instanceof ClusterLink cluster
                    ? cluster.askEachMaster(node -> queuesOf(node, pace))
                    : List.of(queuesOf(links.get(i), pace));
            names.forEach(each -> each.forEach(name -> found.merge(
                    name, server, (first, second) -> homeIndex(name) == second ? second : first)));
        }
        return found;
    }

    /**
     * The {@code maxmemory-policy} of every server, as far as it may be asked for; empty where not.
     */
    public List<String> evictionPolicies() {
        List<String> found = new ArrayList<>();
        for (SingleCallerLink link : links) {
            found.addAll(
                    link instanceof ClusterLink cluster
                            ? cluster.askEachMaster(RedisLinks::readEvictionPolicy)
                            : List.of(readEvictionPolicy(link)));
        }
        return found;
    }

    private static String readEvictionPolicy(RedisLink link) {
        if (!(askIfAllowed(link, RedisCall.command("INFO", "memory")) instanceof byte[] reply)) {
            return "";
        }
        String text = new String(reply, StandardCharsets.UTF_8);
        return text.lines()
                .filter(line -> line.startsWith("maxmemory_policy:"))
                .map(line -> line.substring(17).strip())
                .findFirst()
                .orElse("noeviction");
    }

    /**
     * The reply to a command that is only a nicety; null where Redis refuses it: it is renamed, or
     * the user lacks the right to it.
     */
    public static Object askIfAllowed(RedisLink link, RedisCall question) {
        try {
            return link.run(question);
        } catch (BusException error) {
            boolean denied = error.kind() == ErrorKind.UNAUTHORIZED
                    && error.getMessage().contains("no permissions to run");
            if (denied || error.kind() == ErrorKind.SERVER_REFUSED) {
                LOG.debug("an answer is left out: {}", error.getMessage());
                return null;
            }
            throw error;
        }
    }

    /**
     * Return the number of connections that are subscribed to pushes of a queue; in a cluster each
     * is at any one node.
     */
    public long countPushSubscribers(String queue, int server) {
        RedisCall question = RedisCall.command("PUBSUB", "NUMSUB", keys(queue).available());
        SingleCallerLink link = openLinks().get(server);
        List<Object> replies = link instanceof ClusterLink cluster
                ? cluster.askEachMaster(node -> askIfAllowed(node, question))
                : Collections.singletonList(askIfAllowed(link, question));
        return replies.stream()
                .mapToLong(reply -> reply instanceof List<?> counted ? (Long) counted.get(1) : 0)
                .sum();
    }

    private List<String> queuesOf(RedisLink link, Runnable pace) {
        List<String> names = new ArrayList<>();
        byte[] cursor = {'0'};
        while (true) {
            List<?> reply = (List<?>) link.run(RedisCall.command(
                    "SCAN",
                    cursor,
                    "MATCH",
                    QueueKeys.metadataPattern(options.cluster()),
                    "COUNT",
                    KEYS_PER_SCAN));
            cursor = (byte[]) reply.get(0);
            for (Object key : (List<?>) reply.get(1)) {
                String name = queueName((byte[]) key);
                if (name != null) {
                    names.add(name);
                }
            }
            if (cursor.length == 1 && cursor[0] == '0') {
                return names;
            }
            pace.run();
        }
    }

    private String queueName(byte[] key) {
        try {
            return QueueKeys.queueName(
                    StandardCharsets.UTF_8
                            .newDecoder()
                            .decode(ByteBuffer.wrap(key))
                            .toString(),
                    options.cluster());
        } catch (CharacterCodingException error) {
            return null; // no name that we or npm clients could spell: not a queue of the bus
        }
    }

    /** Back to the pool. Closing twice does nothing. */
    @Override
    public void close() {
        if (!inUse) {
            return;
        }
        inUse = false;
        returnedNs = clock.getAsLong();
        closeIdleLinks();
        List<SingleCallerLink> unused =
                links.stream().filter(link -> !link.retireIfBusy()).toList();
        if (unused.size() < links.size()) {
            unused.forEach(RedisLink::close);
            return;
        }
        synchronized (POOL) {
            Deque<RedisLinks> idle = POOL.computeIfAbsent(options, key -> new ArrayDeque<>());
            if (idle.size() < MOST_POOLED) {
                idle.addFirst(this);
                return;
            }
        }
        closeAll();
    }

    /** For all options, since links with some of them may never be asked for again. */
    private static void closeIdleLinks() {
        List<RedisLinks> stale = new ArrayList<>();
        synchronized (POOL) {
            for (Deque<RedisLinks> idle : POOL.values()) {
                while (!idle.isEmpty() && idle.peekLast().isIdleTooLong()) {
                    stale.add(idle.pollLast());
                }
            }
            POOL.values().removeIf(Deque::isEmpty);
        }
        stale.forEach(RedisLinks::closeAll);
    }

    private boolean isIdleTooLong() {
        return clock.getAsLong() - returnedNs > MOST_IDLE_NS;
    }

    private void closeAll() {
        links.forEach(RedisLink::close);
    }
}
