package busmq.spark.redis;

import java.util.List;

/** The target of a link: a fixed server, or the present master. */
interface RedisEndpoint {
    /** For people; shows no credentials. */
    String maskedAddress();

    /** The secrets, which no text for people may contain. */
    List<String> secrets();

    /**
     * Whether another server may take over: then the one found must say it is master, and READONLY
     * means that it no longer is.
     */
    boolean mayMove();

    /**
     * The server to connect to now. Throws {@link NoServerReachable} or
     * {@link busmq.spark.BusException}.
     */
    RedisServerAddress resolve();
}
