package busmq.spark;

/**
 * The errors of {@code busmq_spark/errors.py} that this module can meet: same codes, same words.
 *
 * <p>Templates have Python's form, {@code {name}} and {@code {name!r}}. What was found, what was expected, what to do.
 */
public enum ErrorKind {
    CONFIG("BUSMQ_CONFIG", false, "{reason}"),
    LINK_LOST("BUSMQ_LINK_LOST", true,
            "cannot reach Redis at {url}: {reason}. Check that the server runs and that this address is reachable from here"),
    UNAUTHORIZED("BUSMQ_UNAUTHORIZED", false,
            "Redis at {url} refused access: {reason}. Check the user and password in redis.url or redis.password, and the user's ACL"),
    TLS_FAILED("BUSMQ_TLS", false,
            "no TLS with Redis at {url}: {reason}. Check redis.tls.ca (whom to trust), redis.tls.certificate (who we are), "
                    + "that the certificate names the host of the URL, and that this port speaks TLS"),
    SERVER_REFUSED("BUSMQ_SERVER_REFUSED", false, "Redis at {url} answered with an error: {reason}"),
    SERVER_FULL("BUSMQ_SERVER_FULL", true,
            "Redis at {url} is out of memory: {reason}. Nothing of this call was stored. "
                    + "Raise maxmemory, set a maxsize on the queues, or drain them"),
    SERVER_READ_ONLY("BUSMQ_READ_ONLY", false,
            "Redis at {url} does not accept writes: {reason}. Name the master in redis.url, or use redis.layout=sentinel"),
    QUEUE_MISSING("BUSMQ_QUEUE_MISSING", false,
            "queue {queue!r} does not exist and may not be created here. "
                    + "Create it with a producer first, or set createQueue=true on a stream"),
    QUEUE_BUSY("BUSMQ_QUEUE_BUSY", false, "queue {queue!r} {found}. {remedy}"),
    QUEUE_DAMAGED("BUSMQ_QUEUE_DAMAGED", false,
            "queue {queue!r}: {found}; expected {expected}. See which program writes to its keys, and repair them or remove the queue"),
    UNREAD_BACKLOG("BUSMQ_UNREAD_BACKLOG", false,
            "queue {queue!r} holds {count} unread messages up to id {last}, where {start} begins; the acks of this query would delete them. "
                    + "To read them set startingOffsets=earliest with a new checkpoint; to leave them stored set ack=none; "
                    + "to delete them unread set discardBacklog=true"),
    QUEUE_FULL("BUSMQ_QUEUE_FULL", true,
            "queue {queue!r} holds its maxsize of {maxsize} messages{waited}; {left} rows are not stored. "
                    + "Let a consumer drain it, or create it anew with a larger maxsize (an existing queue keeps its own); "
                    + "a sink waits longer with fullTimeoutMs"),
    STATE("BUSMQ_STATE", false, "cannot {event} {what}: it is {state}. {remedy}"),
    MESSAGE_REFUSED("BUSMQ_MESSAGE_REFUSED", false, "{reason}"),
    DATA_LOSS("BUSMQ_DATA_LOSS", "messages are gone"),
    QUEUE_EXPIRED("BUSMQ_QUEUE_EXPIRED", "it expired or was closed, with every message that was still in it"),
    QUEUE_FLUSHED("BUSMQ_QUEUE_FLUSHED", "its messages were deleted before they were read"),
    CHECKPOINT_OLDER("BUSMQ_CHECKPOINT_OLDER",
            "the checkpoint is older than what was acknowledged (restored from a backup, or a copy of one whose query has read on)"),
    CONSUMED_ELSEWHERE("BUSMQ_CONSUMED_ELSEWHERE", "another consumer took messages before they were read"),
    QUEUE_RECREATED("BUSMQ_QUEUE_RECREATED", "it was removed and created again, so its ids began again at 1"),
    REDIS_ROLLED_BACK("BUSMQ_REDIS_ROLLED_BACK",
            "Redis is older than the checkpoint (restored from a backup, or a failover that lost acknowledged pushes)"),
    IDS_REISSUED("BUSMQ_IDS_REISSUED",
            "ids that were already read now belong to other messages (a failover lost acknowledged pushes)"),
    STAGING_LOST("BUSMQ_STAGING_LOST", false,
            "sink {sink}: batch {batch} staged {expected} rows for queue {queue!r} but {found} are left in {key}. "
                    + "Nothing of the missing rows was appended. {remedy}, and see that Redis evicts nothing (maxmemory-policy noeviction)"),
    STALE_BATCH("BUSMQ_STALE_BATCH", false,
            "sink {sink}: batch {batch} was offered but batch {found} is already committed. Another run of this query is ahead, or the checkpoint "
                    + "was replaced while sinkId stayed the same. Use a new sinkId with a new checkpoint"),
    BATCH_CHANGED("BUSMQ_BATCH_CHANGED", false,
            "sink {sink}: batch {batch} is recorded with other {by} than it has now: recorded {found}; now {expected}. Nothing of it is appended, "
                    + "and its sources are not acknowledged. {remedy}"),
    TOOL_MISSING("BUSMQ_TOOL_MISSING", false, "{tool} is missing: {reason}. {remedy}");

    private final String code;
    private final boolean retriable;
    private final String template;

    ErrorKind(String code, boolean retriable, String template) {
        this.code = code;
        this.retriable = retriable;
        this.template = template;
    }

    ErrorKind(String code, String cause) {
        this(code, false, "queue {queue!r}: " + cause + "; expected {expected}, found {found}. "
                + "To go on from the oldest stored message set failOnDataLoss=false; to start anew use a new checkpoint");
    }

    /** Never changes once released. */
    public String code() {
        return code;
    }

    /** Whether waiting may mend it. */
    public boolean retriable() {
        return retriable;
    }

    String template() {
        return template;
    }
}
