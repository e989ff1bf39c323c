package busmq.spark.redis;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.AbstractList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(30)
class ServerLinkTest {
    @Test
    void afterAnErrorInTheMiddleOfACallTheNextOneGetsItsOwnReply() throws Exception {
        List<byte[]> words = new AbstractList<>() {
            @Override
            public byte[] get(int index) {
                if (index > 0) {
                    throw new OutOfMemoryError("as tests have it");
                }
                return "ECHO".getBytes();
            }

            @Override
            public int size() {
                return 2;
            }
        };
        List<Call> halfway = List.of(Call.command("ECHO", "first"), new Call(words, null, 0, true));
        try (EchoServer server = new EchoServer(); ServerLink link = new ServerLink(server.endpoint())) {
            link.run(Call.command("ECHO", "opens it"));
            assertThrows(OutOfMemoryError.class, () -> link.runAll(halfway));
            assertArrayEquals("second".getBytes(), (byte[]) link.run(Call.command("ECHO", "second")));
        }
    }
}
