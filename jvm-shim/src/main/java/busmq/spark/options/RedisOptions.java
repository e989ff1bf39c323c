package busmq.spark.options;

import busmq.spark.BusException;
import java.io.Serializable;
import java.util.List;

/**
 * How to reach Redis. Equal for every query of the same address. Its text shows no secrets; what it is serialized into does hold them.
 *
 * @param url one URL or a comma list; of {@code redis.url}, else of the environment where the query is started
 */
public record RedisOptions(String url, String user, String password, String layout, String master, String tlsCa, String tlsCertificate,
        String tlsKey, boolean tlsCheckHostname) implements Serializable {
    private static final Row<String> URL = Row.of("redis.url", text -> text);
    private static final Row<String> USER = Row.of("redis.username", Parsers::name);
    private static final Row<String> PASSWORD = Row.of("redis.password", text -> text);
    private static final Row<String> LAYOUT = Row.of("redis.layout", Parsers.oneOf("direct", "sentinel", "cluster"));
    private static final Row<String> MASTER = Row.of("redis.sentinelMaster", Parsers::name);
    private static final Row<String> TLS_CA = Row.of("redis.tls.ca", Parsers::name);
    private static final Row<String> TLS_CERTIFICATE = Row.of("redis.tls.certificate", Parsers::name);
    private static final Row<String> TLS_KEY = Row.of("redis.tls.key", Parsers::name);
    private static final Row<Boolean> TLS_CHECK_HOSTNAME = Row.of("redis.tls.checkHostname", Parsers::flag);
    static final Row<Boolean> REQUIRE_NO_EVICTION = Row.of("requireNoEviction", Parsers::flag);
    /** The option has no meaning without federation, and is taken for the sake of one option map for both formats. */
    private static final Row<String> ON_UNAVAILABLE = Row.of("onUnavailable", Parsers.oneOf("wait", "fail"));
    static final List<Row<?>> ROWS = List.of(URL, USER, PASSWORD, LAYOUT, MASTER, TLS_CA, TLS_CERTIFICATE, TLS_KEY, TLS_CHECK_HOSTNAME,
            REQUIRE_NO_EVICTION, ON_UNAVAILABLE, EngineChoice.ROW);

    /** A server without credentials, for tests and tools. */
    public static RedisOptions at(String url) {
        return new RedisOptions(url, null, null, "direct", MASTER.fallback(), null, null, null, true);
    }

    static RedisOptions from(OptionTable.Values values) {
        String url = values.get(URL);
        if (url == null || url.isEmpty()) {
            url = System.getenv("BUSMQ_REDIS_URL");
        }
        if (url == null || url.isEmpty()) {
            throw BusException.config("no Redis is named: set option 'redis.url' (redis://host:port) or the environment variable BUSMQ_REDIS_URL");
        }
        return new RedisOptions(url, values.get(USER), values.get(PASSWORD), values.get(LAYOUT), values.get(MASTER), values.get(TLS_CA),
                values.get(TLS_CERTIFICATE), values.get(TLS_KEY), values.get(TLS_CHECK_HOSTNAME));
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
