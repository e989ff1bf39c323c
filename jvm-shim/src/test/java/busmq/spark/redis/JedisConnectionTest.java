package busmq.spark.redis;

import static org.junit.jupiter.api.Assertions.assertThrows;

import busmq.spark.BusException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.SocketTimeoutException;
import org.junit.jupiter.api.Test;

class JedisConnectionTest {
    @Test
    void aFileOfTlsThatIsGoneMeanwhileLeavesNoConnectionBehind() throws Exception {
        try (ServerSocket listening = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            TlsFiles trust = new TlsFiles("/nowhere/ca.pem", null, null, true);
            RedisServerAddress server = new RedisServerAddress(
                    "127.0.0.1", listening.getLocalPort(), true, null, null, trust);
            assertThrows(BusException.class, () -> JedisConnection.dial(server));
            listening.setSoTimeout(50); // one that was made would be waiting already
            assertThrows(SocketTimeoutException.class, listening::accept);
        }
    }
}
