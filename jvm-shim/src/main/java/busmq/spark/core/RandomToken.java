package busmq.spark.core;

import java.security.SecureRandom;
import java.util.HexFormat;

/** Random names: of incarnations of queues, attempts of tasks, holders of leases. */
public final class RandomToken {
    private static final SecureRandom RANDOM = new SecureRandom();

    private RandomToken() {}

    /** A new one: 16 hexadecimal digits. */
    public static String next() {
        return HexFormat.of().toHexDigits(RANDOM.nextLong());
    }
}
