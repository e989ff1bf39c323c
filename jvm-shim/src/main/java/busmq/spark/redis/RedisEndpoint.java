package busmq.spark.redis;

import java.util.List;

/** What a link connects to: always the same server, or whichever is master at the moment. */
interface RedisEndpoint {
    /** For people; shows no credentials. */
    String maskedAddress();

    /** What no text for people may contain. */
    List<String> secrets();

    /** Whether another server may take over: then the one found must say it is master, and READONLY means that it no longer is. */
    boolean mayMove();

    /** The server to connect to now. Throws {@link NoServerReachable} or {@link busmq.spark.BusException}. */
    RedisServerAddress resolve();
}
