package busmq.spark.core;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;

/** The fingerprint of a message, as {@code lua/include/mark.lua} computes it on the server. */
public final class Fingerprint {
    private static final int END = 512;
    private static final int DIGITS = 12;

    private Fingerprint() {}

    public static String of(byte[] value) {
        int end = Math.min(END, value.length);
        MessageDigest sha1 = sha1();
        sha1.update((value.length + ":").getBytes(StandardCharsets.US_ASCII));
        sha1.update(value, 0, end);
        sha1.update(value, value.length - end, end);
        return HexFormat.of().formatHex(sha1.digest()).substring(0, DIGITS);
    }

    private static MessageDigest sha1() {
        try {
            return MessageDigest.getInstance("SHA-1");
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException("every Java has SHA-1", error);
        }
    }
}
