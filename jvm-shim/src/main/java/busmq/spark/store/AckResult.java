package busmq.spark.store;

/**
 * The result of an ack. {@code status}: ok, missing, recreated, older or reissued; {@code detail}
 * is the id or life that Redis has instead.
 */
public record AckResult(String status, String detail) {
    public boolean isRefused() {
        return !status.equals("ok");
    }
}
