package busmq.spark;

import java.util.Arrays;

/**
 * The errors of {@code busmq_spark/errors} that this module can meet. Their words are those of the
 * contract, in Python's form: {@code {name}} and {@code {name!r}}.
 */
public enum ErrorKind {
    CONFIG("BUSMQ_CONFIG"),
    ENGINE("BUSMQ_ENGINE"),
    JAR_VERSION("BUSMQ_JAR_VERSION"),
    LINK_LOST("BUSMQ_LINK_LOST"),
    WRITES_PAUSED("BUSMQ_WRITES_PAUSED"),
    UNAUTHORIZED("BUSMQ_UNAUTHORIZED"),
    TLS("BUSMQ_TLS"),
    SERVER_REFUSED("BUSMQ_SERVER_REFUSED"),
    SERVER_FULL("BUSMQ_SERVER_FULL"),
    READ_ONLY("BUSMQ_READ_ONLY"),
    QUEUE_MISSING("BUSMQ_QUEUE_MISSING"),
    TOPIC_MISSING("BUSMQ_TOPIC_MISSING"),
    QUEUE_BUSY("BUSMQ_QUEUE_BUSY"),
    QUEUE_IS_MIRROR("BUSMQ_QUEUE_IS_MIRROR"),
    QUEUE_DAMAGED("BUSMQ_QUEUE_DAMAGED"),
    TIME_UNKNOWN("BUSMQ_TIME_UNKNOWN"),
    UNREAD_BACKLOG("BUSMQ_UNREAD_BACKLOG"),
    QUEUE_FULL("BUSMQ_QUEUE_FULL"),
    STATE("BUSMQ_STATE"),
    MESSAGE_REFUSED("BUSMQ_MESSAGE_REFUSED"),
    DATA_LOSS("BUSMQ_DATA_LOSS"),
    QUEUE_EXPIRED("BUSMQ_QUEUE_EXPIRED"),
    QUEUE_FLUSHED("BUSMQ_QUEUE_FLUSHED"),
    CHECKPOINT_OLDER("BUSMQ_CHECKPOINT_OLDER"),
    CONSUMED_ELSEWHERE("BUSMQ_CONSUMED_ELSEWHERE"),
    QUEUE_RECREATED("BUSMQ_QUEUE_RECREATED"),
    REDIS_ROLLED_BACK("BUSMQ_REDIS_ROLLED_BACK"),
    IDS_REISSUED("BUSMQ_IDS_REISSUED"),
    STAGING_LOST("BUSMQ_STAGING_LOST"),
    STALE_BATCH("BUSMQ_STALE_BATCH"),
    STALE_RUN("BUSMQ_STALE_RUN"),
    SINK_TARGETS("BUSMQ_SINK_TARGETS"),
    SINK_ROLLED_BACK("BUSMQ_SINK_ROLLED_BACK"),
    BATCH_CHANGED("BUSMQ_BATCH_CHANGED"),
    TOOL_MISSING("BUSMQ_TOOL_MISSING");

    private final String code;
    private final boolean retriable;
    private final String template;

    ErrorKind(String code) {
        this.code = code;
        retriable = SharedPythonConstants.retriable(code);
        template = SharedPythonConstants.template(code);
    }

    /** Never changes once released. */
    public String code() {
        return code;
    }

    /** Whether the same call may succeed later. */
    public boolean retriable() {
        return retriable;
    }

    /** Whether Redis could not serve the call for now, and waiting may mend it. */
    public boolean isLinkLost() {
        return this == LINK_LOST || this == WRITES_PAUSED;
    }

    /** The error of a code. */
    public static ErrorKind ofCode(String code) {
        return Arrays.stream(values())
                .filter(kind -> kind.code.equals(code))
                .findFirst()
                .orElseThrow();
    }

    String template() {
        return template;
    }
}
