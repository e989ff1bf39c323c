package busmq.spark.redis;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.PrivateKey;
import java.security.PublicKey;
import java.security.Signature;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Certificates and private keys of PEM files. Java itself reads keys in PKCS 8 only; those of older
 * tools are wrapped into it.
 */
final class Pem {
    private static final Pattern BLOCK =
            Pattern.compile("-----BEGIN ([A-Z0-9 ]+)-----([^-]+)-----END \\1-----");
    /** The OIDs rsaEncryption (with its NULL) and ecPublicKey, in DER. */
    private static final byte[] RSA = {
        6, 9, 42, (byte) 134, 72, (byte) 134, (byte) 247, 13, 1, 1, 1, 5, 0
    };

    private static final byte[] EC = {6, 7, 42, (byte) 134, 72, (byte) 206, 61, 2, 1};

    private Pem() {}

    static List<Certificate> readCertificates(Path file)
            throws IOException, GeneralSecurityException {
        List<Certificate> found = new ArrayList<>();
        Matcher block = BLOCK.matcher(Files.readString(file, StandardCharsets.ISO_8859_1));
        while (block.find()) {
            if (block.group(1).equals("CERTIFICATE")) {
                found.add(CertificateFactory.getInstance("X.509")
                        .generateCertificate(
                                new ByteArrayInputStream(decodeBase64(block.group(2)))));
            }
        }
        return found;
    }

    /** The key of the file; throws when it does not belong to this public key. */
    static PrivateKey readPrivateKey(Path file, PublicKey to)
            throws IOException, GeneralSecurityException {
        Matcher block = BLOCK.matcher(Files.readString(file, StandardCharsets.ISO_8859_1));
        while (block.find()) {
            if (block.group(1).endsWith("PRIVATE KEY")) {
                PrivateKey key = KeyFactory.getInstance(to.getAlgorithm())
                        .generatePrivate(new PKCS8EncodedKeySpec(toPkcs8(block)));
                checkKeyPair(key, to);
                return key;
            }
        }
        throw new IOException("there is no private key in it");
    }

    private static byte[] toPkcs8(Matcher block) throws IOException {
        boolean old = block.group(2).contains("Proc-Type");
        if (old || block.group(1).startsWith("ENCRYPTED")) {
            throw new IOException("the key is encrypted; give one that is not");
        }
        byte[] der = decodeBase64(block.group(2));
        return switch (block.group(1)) {
            case "RSA PRIVATE KEY" -> wrapAsPkcs8(RSA, der);
            case "EC PRIVATE KEY" -> wrapAsPkcs8(concat(EC, curveOid(der)), der);
            default -> der;
        };
    }

    private static byte[] wrapAsPkcs8(byte[] algorithm, byte[] key) {
        return derElement(
                0x30,
                concat(new byte[] {2, 1, 0}, derElement(0x30, algorithm), derElement(4, key)));
    }

    /** The content of field [0] of an ECPrivateKey (RFC 5915): the OID of its curve. */
    private static byte[] curveOid(byte[] der) throws IOException {
        int at = 2 + (der[1] < 0 ? der[1] & 0x7f : 0);
        while (at + 1 < der.length) {
            int length = der[at + 1];
            if (der[at] == (byte) 0xa0) {
                return java.util.Arrays.copyOfRange(der, at + 2, at + 2 + length);
            }
            if (length < 0) {
                break;
            }
            at += 2 + length;
        }
        throw new IOException("the key does not name its curve");
    }

    private static byte[] derElement(int tag, byte[] content) {
        int length = content.length;
        byte[] head = length < 128
                ? new byte[] {(byte) tag, (byte) length}
                : length < 256
                        ? new byte[] {(byte) tag, (byte) 0x81, (byte) length}
                        : new byte[] {(byte) tag, (byte) 0x82, (byte) (length >> 8), (byte) length};
        return concat(head, content);
    }

    private static byte[] concat(byte[]... parts) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        for (byte[] part : parts) {
            out.writeBytes(part);
        }
        return out.toByteArray();
    }

    private static byte[] decodeBase64(String text) {
        return Base64.getMimeDecoder().decode(text);
    }

    private static void checkKeyPair(PrivateKey key, PublicKey to) throws GeneralSecurityException {
        String name =
                switch (key.getAlgorithm()) {
                    case "RSA" -> "SHA256withRSA";
                    case "EC" -> "SHA256withECDSA";
                    default -> key.getAlgorithm();
                };
        Signature signature = Signature.getInstance(name);
        signature.initSign(key);
        signature.update((byte) 1);
        byte[] signed = signature.sign();
        signature.initVerify(to);
        signature.update((byte) 1);
        if (!signature.verify(signed)) {
            throw new GeneralSecurityException("the key is another certificate's");
        }
    }
}
