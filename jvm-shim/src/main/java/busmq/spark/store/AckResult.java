package busmq.spark.store;

/** What became of an ack. {@code status}: ok, missing, recreated, older or reissued; {@code detail} is what was found instead. */
public record AckResult(String status, String detail) {
    public boolean isRefused() {
        return !status.equals("ok");
    }
}
