package busmq.spark.core;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.HexFormat;

/** The fingerprint of a message, as {@code lua/include/mark.lua} computes it on the server. */
public final class MessageFingerprint {
    private static final int END_BYTES = 512;
    private static final int DIGITS = 12;

    private MessageFingerprint() {}

    public static String of(byte[] value) {
        int end = Math.min(END_BYTES, value.length);
        byte[] length = (value.length + ":").getBytes(StandardCharsets.US_ASCII);
        ByteBuffer first = ByteBuffer.wrap(value, 0, end);
        ByteBuffer last = ByteBuffer.wrap(value, value.length - end, end);
        return hexDigest("SHA-1", ByteBuffer.wrap(length), first, last).substring(0, DIGITS);
    }

    /**
     * The digest of parts that follow each other, in hex; {@code algorithm} is one that every Java
     * has.
     */
    public static String hexDigest(String algorithm, ByteBuffer... parts) {
        try {
            MessageDigest digest = MessageDigest.getInstance(algorithm);
            Arrays.stream(parts).forEach(digest::update);
            return HexFormat.of().formatHex(digest.digest());
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }
}
