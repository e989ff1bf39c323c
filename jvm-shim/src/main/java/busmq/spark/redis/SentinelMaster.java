package busmq.spark.redis;

import busmq.spark.BusException;
import busmq.spark.PyText;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import redis.clients.jedis.exceptions.JedisException;

/**
 * The master that Redis Sentinel names. Asked at every connect, so a fail-over needs no
 * notification.
 *
 * @param login credentials and trust for the data servers; a sentinel's own stand in its URL
 */
record SentinelMaster(List<RedisServerAddress> sentinels, String name, RedisServerAddress login)
        implements RedisEndpoint {
    @Override
    public String maskedAddress() {
        return name + "@"
                + sentinels.stream()
                        .map(RedisServerAddress::maskedAddress)
                        .collect(Collectors.joining(","));
    }

    @Override
    public List<String> secrets() {
        List<String> all = new ArrayList<>(login.secrets());
        sentinels.forEach(sentinel -> all.addAll(sentinel.secrets()));
        return all;
    }

    @Override
    public boolean mayMove() {
        return true;
    }

    /** Asks one sentinel after the other who is master. */
    @Override
    public RedisServerAddress resolve() {
        BusException last = null;
        boolean unknown = false;
        for (RedisServerAddress sentinel : sentinels) {
            try {
                Object reply = JedisConnection.ask(
                        sentinel, RedisCall.command("SENTINEL", "get-master-addr-by-name", name));
                if (reply instanceof List<?> found && !found.isEmpty()) {
                    return new RedisServerAddress(
                            text(found.get(0)),
                            Integer.parseInt(text(found.get(1))),
                            sentinels.get(0).tls(),
                            login.user(),
                            login.password(),
                            login.trust());
                }
                unknown = true;
            } catch (JedisException error) {
                last = ErrorTranslator.translate(error, sentinel);
            }
        }
        if (unknown) { // this is reported rather than that others are down
            throw BusException.configError(
                    "the sentinels know no master " + PyText.repr(name) + " (" + maskedAddress()
                            + "); name the one they watch with redis.sentinelMaster");
        }
        if (!last.kind().isLinkLost()) {
            throw last;
        }
        throw new NoServerReachable(
                "no sentinel answers: " + last.getMessageParameters().get("reason"));
    }

    private static String text(Object word) {
        return new String((byte[]) word, StandardCharsets.UTF_8);
    }

    @Override
    public String toString() {
        return maskedAddress();
    }
}
