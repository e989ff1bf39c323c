package busmq.spark.store;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.options.RedisOptions;
import java.util.LinkedHashMap;
import java.util.Map;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * With any {@code maxmemory-policy} but noeviction Redis removes queues by itself, without an
 * error, when memory runs short.
 */
public final class EvictionCheck {
    private static final Logger LOG = LoggerFactory.getLogger(EvictionCheck.class);

    private static final int MOST_RUNS = 1000;
    /**
     * Runs of queries whose sink was checked, the newest ones: Spark makes the write of a stream
     * anew for each batch.
     */
    private static final Map<Run, Boolean> CHECKED_RUNS = new LinkedHashMap<>() {
        private static final long serialVersionUID = 1;

        @Override
        protected boolean removeEldestEntry(Map.Entry<Run, Boolean> eldest) {
            return size() > MOST_RUNS;
        }
    };

    private record Run(String id, RedisOptions options, boolean required) {}

    private EvictionCheck() {}

    /**
     * Check eviction policies, like {@link #checkEvictionPolicies(ReadStore, boolean)}, without a
     * store. A server that does not answer now is an error where it is needed.
     */
    public static void checkEvictionPolicies(RedisOptions options, boolean required) {
        checkIfReachable(options, required);
    }

    /**
     * Check eviction policies once in a run of a query; {@code id} is null where the run is not
     * known.
     */
    public static void checkOnce(String id, RedisOptions options, boolean required) {
        Run run = new Run(id, options, required);
        synchronized (CHECKED_RUNS) {
            if (id != null && CHECKED_RUNS.containsKey(run)) {
                return;
            }
        }
        if (checkIfReachable(options, required)) {
            synchronized (CHECKED_RUNS) {
                CHECKED_RUNS.put(run, true);
            }
        }
    }

    private static boolean checkIfReachable(RedisOptions options, boolean required) {
        try (ReadStore store = new ReadStore(options)) {
            checkEvictionPolicies(store, required);
            return true;
        } catch (BusException error) {
            if (!error.retriable()) {
                throw error;
            }
            return false;
        }
    }

    /** Warns of servers that evict, or throws BUSMQ_CONFIG where noeviction is {@code required}. */
    public static void checkEvictionPolicies(ReadStore store, boolean required) {
        for (String policy : store.evictionPolicies()) {
            boolean unknown = policy.isEmpty();
            if (policy.equals("noeviction") || (unknown && !required)) {
                continue;
            }
            String text = "the maxmemory-policy of Redis is "
                    + (unknown ? SharedPythonConstants.text("policyUnknown") : policy)
                    + ": when memory runs short Redis removes queues and staged rows without an"
                    + " error";
            if (required) {
                throw BusException.configError(text
                        + ", and requireNoEviction=true refuses that. Set maxmemory-policy"
                        + " noeviction");
            }
            LOG.warn(
                    "{}. Set maxmemory-policy noeviction, or the option requireNoEviction=true to"
                            + " be refused",
                    text);
        }
    }
}
