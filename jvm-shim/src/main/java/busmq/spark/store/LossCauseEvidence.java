package busmq.spark.store;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import busmq.spark.core.Loss;

/**
 * Evidence of the client that removed messages: messages that a reliable consumer holds, the number
 * of listeners, an empty database.
 */
record LossCauseEvidence(boolean unacked, long listeners, boolean empty) {
    /**
     * The error for a loss. Removal leaves little trace: un-acked copies or another listener mean a
     * consumer, else it was a deletion.
     */
    BusException lossError(String queue, Loss loss, long ownListeners) {
        String kind = loss.kind();
        if (kind.equals("expired") && empty) {
            kind = "flushed";
        }
        if (kind.equals("removed")) {
            kind = unacked || listeners > ownListeners ? "consumed" : "flushed";
        }
        ErrorKind found =
                switch (kind) {
                    case "expired" -> ErrorKind.QUEUE_EXPIRED;
                    case "acknowledged" -> ErrorKind.CHECKPOINT_OLDER;
                    case "consumed" -> ErrorKind.CONSUMED_ELSEWHERE;
                    case "recreated" -> ErrorKind.QUEUE_RECREATED;
                    case "rolled-back" -> ErrorKind.REDIS_ROLLED_BACK;
                    case "reissued" -> ErrorKind.IDS_REISSUED;
                    default -> ErrorKind.QUEUE_FLUSHED;
                };
        return BusException.of(
                found, "queue", queue, "expected", loss.expected(), "found", loss.found());
    }
}
