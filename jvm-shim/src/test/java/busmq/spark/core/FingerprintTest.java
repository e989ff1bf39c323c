package busmq.spark.core;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.charset.StandardCharsets;
import org.junit.jupiter.api.Test;

/** The same fingerprints as lua/include/mark.lua; the expected ones come from Redis. */
class FingerprintTest {
    @Test
    void aFingerprintIsThatOfTheServer() {
        assertEquals("b44b82a4bc6c", MessageFingerprint.of(new byte[0]));
        assertEquals("0b18b8b0dd49", MessageFingerprint.of("a".getBytes(StandardCharsets.UTF_8)));
        assertEquals(
                "f356c4f3feba",
                MessageFingerprint.of("x".repeat(512).getBytes(StandardCharsets.UTF_8)));
        assertEquals("a967a9abe5de", MessageFingerprint.of(counting(1280)));
    }

    private static byte[] counting(int size) {
        byte[] value = new byte[size];
        for (int i = 0; i < size; i++) {
            value[i] = (byte) i;
        }
        return value;
    }
}
