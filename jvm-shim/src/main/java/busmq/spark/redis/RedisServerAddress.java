package busmq.spark.redis;

import java.util.List;
import java.util.Objects;
import java.util.stream.Stream;

/** The address of a Redis server. Its text shows no credentials. */
record RedisServerAddress(
        String host, int port, boolean tls, String user, String password, TlsFiles trust)
        implements RedisEndpoint {
    @Override
    public String maskedAddress() {
        String secret = user != null || password != null ? "***@" : "";
        String shown = host.contains(":") ? "[" + host + "]" : host;
        return (tls ? "rediss://" : "redis://") + secret + shown + ":" + port;
    }

    @Override
    public List<String> secrets() {
        return Stream.of(password, user).filter(Objects::nonNull).toList();
    }

    @Override
    public boolean mayMove() {
        return false;
    }

    @Override
    public RedisServerAddress resolve() {
        return this;
    }

    RedisServerAddress withAddress(String otherHost, int otherPort) {
        return new RedisServerAddress(otherHost, otherPort, tls, user, password, trust);
    }

    @Override
    public String toString() {
        return maskedAddress();
    }
}
