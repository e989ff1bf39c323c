package busmq.spark.store;

import busmq.spark.BusException;
import busmq.spark.Contract;
import busmq.spark.options.RedisOptions;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** With any {@code maxmemory-policy} but noeviction Redis removes queues by itself, without an error, when memory runs short. */
public final class Eviction {
    private static final Logger LOG = LoggerFactory.getLogger(Eviction.class);

    private Eviction() {}

    /** The same before there is a store. A server that does not answer now is missed where it is needed. */
    public static void check(RedisOptions options, boolean required) {
        try (ReadStore store = new ReadStore(options)) {
            check(store, required);
        } catch (BusException error) {
            if (!error.retriable()) {
                throw error;
            }
        }
    }

    /** Warns of servers that evict, or throws BUSMQ_CONFIG where noeviction is {@code required}. */
    public static void check(ReadStore store, boolean required) {
        for (String policy : store.policies()) {
            boolean unknown = policy.isEmpty();
            if (policy.equals("noeviction") || (unknown && !required)) {
                continue;
            }
            String text = "the maxmemory-policy of Redis is " + (unknown ? Contract.text("policyUnknown") : policy)
                    + ": when memory runs short Redis removes queues and staged rows without an error";
            if (required) {
                throw BusException.config(text + ", and requireNoEviction=true refuses that. Set maxmemory-policy noeviction");
            }
            LOG.warn("{}. Set maxmemory-policy noeviction, or the option requireNoEviction=true to be refused", text);
        }
    }
}
