package busmq.spark.redis;

import busmq.spark.BusException;
import busmq.spark.PyText;
import java.io.IOException;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.util.List;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;

/** Sockets that check the other side as the options say. */
final class TlsSockets {
    private TlsSockets() {}

    /** Throws a BUSMQ_CONFIG error that names the file which cannot be used. */
    static SSLSocketFactory socketFactory(TlsFiles trust) {
        TrustManager[] trusted = trust.ca() == null ? null : trustManagers(trust.ca());
        KeyManager[] shown =
                trust.certificate() == null ? null : keyManagers(trust.certificate(), trust.key());
        try {
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(shown, trusted, null);
            return context.getSocketFactory();
        } catch (GeneralSecurityException error) {
            throw BusException.configError(
                    "this Java cannot speak TLS (" + error.getMessage() + ")");
        }
    }

    private static TrustManager[] trustManagers(String ca) {
        try {
            List<Certificate> authorities = Pem.readCertificates(Path.of(ca));
            if (authorities.isEmpty()) {
                throw new IOException("there is none");
            }
            KeyStore store = emptyKeyStore();
            for (int i = 0; i < authorities.size(); i++) {
                store.setCertificateEntry("ca" + i, authorities.get(i));
            }
            TrustManagerFactory factory =
                    TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            factory.init(store);
            return factory.getTrustManagers();
        } catch (GeneralSecurityException | IOException | IllegalArgumentException error) {
            throw BusException.configError("redis.tls.ca, " + PyText.repr(ca)
                    + ", holds no certificate in PEM form that can be read (" + error.getMessage()
                    + ")");
        }
    }

    private static KeyManager[] keyManagers(String certificate, String key) {
        try {
            List<Certificate> chain = Pem.readCertificates(Path.of(certificate));
            if (chain.isEmpty()) {
                throw new IOException("there is no certificate in it");
            }
            KeyStore store = emptyKeyStore();
            char[] none = new char[0];
            store.setKeyEntry(
                    "own",
                    Pem.readPrivateKey(
                            Path.of(key == null ? certificate : key),
                            chain.get(0).getPublicKey()),
                    none,
                    chain.toArray(Certificate[]::new));
            KeyManagerFactory factory =
                    KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            factory.init(store, none);
            return factory.getKeyManagers();
        } catch (GeneralSecurityException | IOException | IllegalArgumentException error) {
            throw BusException.configError("redis.tls.certificate, " + PyText.repr(certificate)
                    + ", and its private key cannot be used (" + error.getMessage()
                    + "); both must be PEM and belong together");
        }
    }

    private static KeyStore emptyKeyStore() throws GeneralSecurityException, IOException {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        return store;
    }
}
