package busmq.spark.core;

/**
 * Which server owns a key that none has yet: the sum of its UTF-16 code units modulo their number
 * (protocol chapter 2).
 */
public final class ServerIndex {
    private ServerIndex() {}

    /** The index of one of {@code servers}. */
    public static int of(String key, int servers) {
        long sum = 0;
        for (int i = 0; i < key.length(); i++) {
            sum += key.charAt(i);
        }
        return (int) (sum % servers);
    }
}
