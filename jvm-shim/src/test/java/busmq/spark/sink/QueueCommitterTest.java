package busmq.spark.sink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import busmq.spark.core.QueueKeys;
import busmq.spark.sink.StagedList.EqualChunks;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.junit.jupiter.api.Test;

class QueueCommitterTest {
    private final QueueCommitter commit =
            new QueueCommitter(new QueueKeys("q", false), "s", 7, List.of(new StagedList("q", 0, "k", List.of(new EqualChunks(10, 1)), null)), 0);

    @Test
    void aStatusOfALaterVersionEndsTheCommitWithAnError() {
        int[] asked = {0};
        BusException refused = assertThrows(BusException.class, () -> QueueCommitter.commitTogether(List.of(commit), calls -> {
            asked[0]++;
            return List.of(reply("postponed"));
        }));
        assertEquals(ErrorKind.SERVER_REFUSED, refused.kind());
        assertTrue(refused.getMessage().contains("unknown commit status 'postponed'"), refused.getMessage());
        assertEquals(1, asked[0]);
        assertFalse(commit.isOpen());
    }

    private static List<Object> reply(String status) {
        return List.of(status.getBytes(StandardCharsets.UTF_8), 0L, 0L);
    }
}
