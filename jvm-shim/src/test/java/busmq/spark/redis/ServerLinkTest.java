package busmq.spark.redis;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.AbstractList;
import java.util.List;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(30)
class ServerLinkTest {
    @Test
    void afterAnErrorInTheMiddleOfACallTheNextOneGetsItsOwnReply() throws Exception {
        List<Call> halfway = new AbstractList<>() {
            @Override
            public Call get(int index) {
                return Call.command("ECHO", "first");
            }

            @Override
            public int size() {
                return 2;
            }

            @Override
            public void forEach(Consumer<? super Call> action) {
                action.accept(get(0));
                throw new OutOfMemoryError("as tests have it");
            }
        };
        try (EchoServer server = new EchoServer(); ServerLink link = new ServerLink(server.endpoint())) {
            link.run(Call.command("ECHO", "opens it"));
            assertThrows(OutOfMemoryError.class, () -> link.runAll(halfway));
            assertArrayEquals("second".getBytes(), (byte[]) link.run(Call.command("ECHO", "second")));
        }
    }
}
