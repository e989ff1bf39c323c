package busmq.spark.options;

import busmq.spark.BusException;
import java.io.Serializable;

/**
 * The address and the credentials of Redis. Equal for every query of the same address. Its text
 * shows no secrets; its serialized form holds them.
 *
 * @param url one URL or a comma list; of {@code redis.url}, else of the environment where the
 *     query is started
 */
public record RedisOptions(
        @OptionName("redis.url") String url,
        @OptionName("redis.username") String user,
        @OptionName("redis.password") String password,
        @OptionName("redis.layout") String layout,
        @OptionName("redis.sentinelMaster") String master,
        @OptionName("redis.tls.ca") String tlsCa,
        @OptionName("redis.tls.certificate") String tlsCertificate,
        @OptionName("redis.tls.key") String tlsKey,
        @OptionName("redis.tls.checkHostname") boolean tlsCheckHostname)
        implements Serializable {
    public RedisOptions {
        if (url == null) {
            url = System.getenv("BUSMQ_REDIS_URL");
            if (url != null && (url.endsWith("\n") || url.endsWith("\r"))) {
                throw BusException.configError(
                        "the environment variable BUSMQ_REDIS_URL ends with a line break, "
                                + "as text that was read from a file does; take it off");
            }
        }
        if (url == null || url.isEmpty()) {
            throw BusException.configError(
                    "no Redis is named: set option 'redis.url' (redis://host:port) or the"
                            + " environment variable BUSMQ_REDIS_URL");
        }
    }

    /** Whether key names carry hash tags and calls are routed by slot. */
    public boolean cluster() {
        return layout.equals("cluster");
    }

    @Override
    public String toString() {
        return "RedisOptions[" + layout + " ***]";
    }
}
