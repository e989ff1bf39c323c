package busmq.spark.redis;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
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
        List<RedisCall> halfway =
                List.of(RedisCall.command("ECHO", "first"), new RedisCall(words, null, 0, true));
        try (EchoServer server = new EchoServer();
                SingleServerLink link = new SingleServerLink(server.endpoint())) {
            link.run(RedisCall.command("ECHO", "opens it"));
            assertThrows(OutOfMemoryError.class, () -> link.runAll(halfway));
            assertArrayEquals(
                    "second".getBytes(), (byte[]) link.run(RedisCall.command("ECHO", "second")));
        }
    }

    @Test
    void whatFollowsACallThatIsSentAgainIsSentAgainToo() throws Exception {
        assertFollowerIsSentAgain(
                RedisCall.command("ECHO", "two"), "LOADING Redis is loading the dataset in memory");
    }

    @Test
    void whatFollowsAScriptThatTheServerDoesNotKnowIsSentAgainToo() throws Exception {
        assertFollowerIsSentAgain(
                RedisCall.script("release", List.of("key"), "two"), "NOSCRIPT No matching script");
    }

    private static void assertFollowerIsSentAgain(RedisCall two, String refusal) throws Exception {
        try (EchoServer server = new EchoServer();
                SingleServerLink link = new SingleServerLink(server.endpoint())) {
            link.run(RedisCall.command("ECHO", "opens it"));
            server.received.clear();
            server.refused.put("two", refusal);
            link.runAll(List.of(
                    RedisCall.command("ECHO", "one"), two, RedisCall.command("ECHO", "three")));
            assertEquals(List.of("one", "two", "three", "two", "three"), server.received);
        }
    }

    @Test
    void whatMustNotBeRepeatedIsNotSentAgain() throws Exception {
        try (EchoServer server = new EchoServer();
                SingleServerLink link = new SingleServerLink(server.endpoint())) {
            link.run(RedisCall.command("ECHO", "opens it"));
            server.received.clear();
            server.refused.put("two", "LOADING Redis is loading the dataset in memory");
            List<Object> found = link.tryAll(List.of(
                    RedisCall.command("ECHO", "two"),
                    RedisCall.command("ECHO", "three").asNonIdempotent()));
            assertEquals(ErrorKind.LINK_LOST, ((BusException) found.get(0)).kind());
            assertEquals(List.of("two", "three"), server.received);
        }
    }
}
