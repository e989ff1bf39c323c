package busmq.spark.sink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import busmq.spark.core.QueueKeys;
import busmq.spark.redis.RedisCall;
import busmq.spark.sink.StagedList.EqualChunks;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

class QueueCommitterTest {
    private final SinkQueueCommitter commit = new SinkQueueCommitter(
            new QueueKeys("q", false),
            "s",
            7,
            List.of(new StagedList("q", 0, "k", List.of(new EqualChunks(10, 1)), null)),
            0);

    @Test
    void aStatusOfALaterVersionEndsTheCommitWithAnError() {
        int[] asked = {0};
        BusException refused = assertThrows(
                BusException.class,
                () -> SinkQueueCommitter.commitTogether(List.of(commit), calls -> {
                    asked[0]++;
                    return List.of(reply("postponed"));
                }));
        assertEquals(ErrorKind.SERVER_REFUSED, refused.kind());
        assertTrue(
                refused.getMessage().contains("unknown commit status 'postponed'"),
                refused.getMessage());
        assertEquals(1, asked[0]);
        assertFalse(commit.isOpen());
    }

    @Test
    void callsOfSeveralChunksAreSentTogether() {
        List<List<RedisCall>> sent = commitAnswered(
                List.of(reply("moved", 3, 0), reply("moved", 3, 0), reply("moved", 1, 0)));
        assertEquals(List.of(List.of("0 0 3", "0 3 3", "1 0 1")), moves(sent));
    }

    @Test
    void whatWasNotCompleteIsGoneOnWith() {
        List<List<RedisCall>> sent = commitAnswered(
                List.of(reply("moved", 2, 0), reply("at", 0, 2), reply("at", 0, 2)),
                List.of(reply("moved", 1, 0), reply("at", 1, 0), reply("moved", 1, 0)));
        assertEquals(
                List.of(List.of("0 0 3", "0 3 3", "1 0 1"), List.of("0 2 1", "0 3 3", "1 0 1")),
                moves(sent));
    }

    @Test
    void afterTheEndNothingIsReadOfTheOtherReplies() {
        commitAnswered(List.of(reply("at", -1, 0), reply("stale", 9, 0), reply("stale", 9, 0)));
    }

    @Test
    void aFullQueueSaysHowManyRowsAreLeft() {
        SinkQueueCommitter two = twoLists();
        SinkQueueCommitter.commitTogether(
                List.of(two),
                calls -> List.of(reply("moved", 3, 0), reply("full", 5, 0), reply("at", 0, 3)));
        assertEquals(new SinkStore.CommitStoppedAtMaxsize(5, 4), two.partialCommit());
    }

    /** Three chunks in two lists. */
    private static SinkQueueCommitter twoLists() {
        List<StagedList> staged = List.of(
                new StagedList("q", 0, "k", List.of(new EqualChunks(3, 2)), null),
                new StagedList("q", 0, "k2", List.of(new EqualChunks(1, 1)), null));
        return new SinkQueueCommitter(new QueueKeys("q", false), "s", 4, staged, 0);
    }

    /** What was sent until it was done. */
    @SafeVarargs
    private static List<List<RedisCall>> commitAnswered(List<Object>... replies) {
        List<List<RedisCall>> sent = new ArrayList<>();
        assertEquals(List.of(), SinkQueueCommitter.commitTogether(List.of(twoLists()), calls -> {
            sent.add(calls);
            return replies[sent.size() - 1];
        }));
        assertEquals(replies.length, sent.size());
        return sent;
    }

    private static List<List<String>> moves(List<List<RedisCall>> sent) {
        return sent.stream()
                .map(calls -> calls.stream().map(QueueCommitterTest::move).toList())
                .toList();
    }

    /** Which list, rows moved before, rows to move. */
    private static String move(RedisCall call) {
        return call.words().subList(call.keyCount() + 3, call.keyCount() + 6).stream()
                .map(String::new)
                .collect(Collectors.joining(" "));
    }

    private static List<Object> reply(String status, long... numbers) {
        return List.of(
                status.getBytes(StandardCharsets.UTF_8),
                numbers.length > 0 ? numbers[0] : 0L,
                numbers.length > 1 ? numbers[1] : 0L);
    }
}
