package busmq.spark.options;

import busmq.spark.BusException;
import java.io.Serializable;
import java.util.List;

/**
 * The address and the credentials of Redis. Equal for every query of the same address. Its text
 * shows no secrets; its serialized form holds them.
 *
 * @param url one URL or a comma list; of {@code redis.url}, else of the environment where the
 *     query is started
 */
public record RedisOptions(
        String url,
        String user,
        String password,
        String layout,
        String master,
        String tlsCa,
        String tlsCertificate,
        String tlsKey,
        boolean tlsCheckHostname)
        implements Serializable {
    private static final OptionRow<String> URL = OptionRow.of("redis.url", Parsers::redisUrl);
    private static final OptionRow<String> USER = OptionRow.of("redis.username", Parsers::name);
    private static final OptionRow<String> PASSWORD =
            OptionRow.of("redis.password", Parsers::secretText);
    private static final OptionRow<String> LAYOUT =
            OptionRow.of("redis.layout", Parsers.oneOf("direct", "sentinel", "cluster"));
    private static final OptionRow<String> MASTER =
            OptionRow.of("redis.sentinelMaster", Parsers::name);
    private static final OptionRow<String> TLS_CA = OptionRow.of("redis.tls.ca", Parsers::name);
    private static final OptionRow<String> TLS_CERTIFICATE =
            OptionRow.of("redis.tls.certificate", Parsers::name);
    private static final OptionRow<String> TLS_KEY = OptionRow.of("redis.tls.key", Parsers::name);
    private static final OptionRow<Boolean> TLS_CHECK_HOSTNAME =
            OptionRow.of("redis.tls.checkHostname", Parsers::flag);
    static final OptionRow<Boolean> REQUIRE_NO_EVICTION =
            OptionRow.of("requireNoEviction", Parsers::flag);
    /**
     * The option has no meaning without federation, and is taken for the sake of one option map for
     * both formats.
     */
    private static final OptionRow<String> ON_UNAVAILABLE =
            OptionRow.of("onUnavailable", Parsers.oneOf("wait", "fail"));

    static final List<OptionRow<?>> ROWS = List.of(
            URL,
            USER,
            PASSWORD,
            LAYOUT,
            MASTER,
            TLS_CA,
            TLS_CERTIFICATE,
            TLS_KEY,
            TLS_CHECK_HOSTNAME,
            REQUIRE_NO_EVICTION,
            ON_UNAVAILABLE,
            EngineChoice.OPTION);

    static RedisOptions fromValues(OptionTable.Values values) {
        String url = values.get(URL);
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
        return new RedisOptions(
                url,
                values.get(USER),
                values.get(PASSWORD),
                values.get(LAYOUT),
                values.get(MASTER),
                values.get(TLS_CA),
                values.get(TLS_CERTIFICATE),
                values.get(TLS_KEY),
                values.get(TLS_CHECK_HOSTNAME));
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
