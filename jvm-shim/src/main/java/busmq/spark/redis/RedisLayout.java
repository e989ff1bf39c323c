package busmq.spark.redis;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.PyText;
import busmq.spark.options.RedisOptions;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The servers of a bus, in any layout, from the options of the user. */
final class RedisLayout {
    private static final int PORT = SharedPythonConstants.intNumber("port");
    private static final int SENTINEL_PORT = SharedPythonConstants.intNumber("sentinelPort");
    private static final String DEFAULT_MASTER = SharedPythonConstants.text("sentinelMaster");

    private RedisLayout() {}

    /**
     * Return an endpoint for each server that may hold queues; a cluster is one. Throws for a bad
     * URL, TLS file or mixture, before anything is connected.
     */
    static List<RedisEndpoint> endpoints(RedisOptions options) {
        TlsFiles trust = new TlsFiles(
                options.tlsCa(),
                options.tlsCertificate(),
                options.tlsKey(),
                options.tlsCheckHostname());
        RedisServerAddress login =
                new RedisServerAddress("", 0, false, options.user(), options.password(), trust);
        boolean sentinel = options.layout().equals("sentinel");
        // The credentials in the options are for the data servers; those of a sentinel are in its
        // URL.
        List<RedisServerAddress> servers = Urls.parse(
                options.url(),
                sentinel ? new RedisServerAddress("", 0, false, null, null, trust) : login,
                sentinel ? SENTINEL_PORT : PORT);
        checkLayout(options, servers);
        checkTls(options, servers);
        return switch (options.layout()) {
            case "sentinel" -> List.of(new SentinelMaster(servers, options.master(), login));
            case "cluster" -> List.of(new ClusterSeeds(servers));
            default -> List.copyOf(servers);
        };
    }

    private static void checkLayout(RedisOptions options, List<RedisServerAddress> servers) {
        String layout = options.layout();
        if (!options.master().equals(DEFAULT_MASTER) && !layout.equals("sentinel")) {
            throw BusException.configError("redis.sentinelMaster is "
                    + PyText.repr(options.master()) + ", but redis.layout is " + layout
                    + "; set redis.layout=sentinel, with the sentinels in redis.url");
        }
        if (!layout.equals("direct")
                && servers.stream().map(RedisServerAddress::tls).distinct().count() > 1) {
            throw BusException.configError(
                    "redis.url mixes redis:// and rediss://; with redis.layout=" + layout
                            + " all nodes speak TLS or none does");
        }
    }

    private static void checkTls(RedisOptions options, List<RedisServerAddress> servers) {
        Map<String, String> files = new LinkedHashMap<>();
        files.put("redis.tls.ca", options.tlsCa());
        files.put("redis.tls.certificate", options.tlsCertificate());
        files.put("redis.tls.key", options.tlsKey());
        files.values().removeIf(path -> path == null);
        String given = files.isEmpty()
                ? options.tlsCheckHostname() ? null : "redis.tls.checkHostname"
                : files.keySet().iterator().next();
        if (given != null && servers.stream().noneMatch(RedisServerAddress::tls)) {
            throw BusException.configError(given
                    + " is set, but no URL in redis.url speaks TLS; write rediss://"
                    + " instead of redis://");
        }
        if (options.tlsKey() != null && options.tlsCertificate() == null) {
            throw BusException.configError(
                    "redis.tls.key is set without redis.tls.certificate, the certificate it"
                            + " belongs to; set both");
        }
        files.forEach((name, path) -> {
            if (!Files.isRegularFile(Path.of(path))) {
                throw BusException.configError(name + " is " + PyText.repr(path)
                        + ", which is no file on this machine; every driver and executor"
                        + " needs it at that path");
            }
        });
        if (given != null) {
            TlsSockets.socketFactory(servers.get(0).trust());
        }
    }
}
