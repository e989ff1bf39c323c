package busmq.spark.redis;

/**
 * No sentinel, or no node of the cluster, could be reached: then waiting for a fail-over is in
 * vain. Never leaves this package.
 */
final class NoServerReachable extends RuntimeException {
    private static final long serialVersionUID = 1;

    NoServerReachable(String reason) {
        super(reason, null, false, false);
    }
}
