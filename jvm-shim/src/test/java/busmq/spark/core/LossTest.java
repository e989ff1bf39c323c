package busmq.spark.core;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.params.provider.Arguments.arguments;

import java.util.stream.Stream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** The cases of tests/core/test_tasks.py. */
class LossTest {
    private static final QueueState FULL = new QueueState(60, "b", 0, 9, 6, 9, 4, "m5", "m9");
    private static final QueueState EMPTY = new QueueState(60, "b", 0, 9, 0, 0, 0, "", "");

    static Stream<Arguments> sound() {
        return Stream.of(
                arguments("next is the oldest", at("b", 5, "m5"), FULL),
                arguments("acked meanwhile", at("b", 5, "m5"), marked("")),
                arguments("fingerprint unknown", at("b", 5, ""), FULL),
                arguments("not acked yet", at("b", 7, "m7"), marked("m7")),
                arguments("at the end", at("b", 9, "m9"), marked("m9")),
                arguments("all acked", at("b", 9, "m9"), EMPTY));
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("sound")
    void nothingIsLost(String says, Position at, QueueState now) {
        assertNull(Loss.between(at, now));
    }

    static Stream<Arguments> losses() {
        QueueState unnamed = new QueueState(60, "", 0, 9, 6, 9, 4, "m5", "m9");
        QueueState gone = new QueueState(0, "", 0, 9, 6, 9, 4, "m5", "m9");
        return Stream.of(
                arguments("expired", at("b", 5, ""), gone, 0, "no such queue"),
                arguments("recreated", at("a", 5, ""), FULL, 0, "incarnation b with ids up to 9"),
                arguments(
                        "recreated",
                        at("a", 5, ""),
                        unnamed,
                        0,
                        "incarnation unnamed with ids up to 9"),
                arguments("rolled-back", at("b", 10, ""), FULL, 0, "last id 9"),
                arguments("reissued", at("b", 5, "other"), FULL, 0, "one with fingerprint m5"),
                arguments("removed", at("b", 3, ""), FULL, 2, "oldest stored id 6"),
                arguments("removed", at("b", 5, ""), EMPTY, 4, "nothing stored after id 9"));
    }

    @ParameterizedTest(name = "{0}: {4}")
    @MethodSource("losses")
    void eachKindOfLossIsToldApartWithWhatWasFound(
            String kind, Position at, QueueState now, long ids, String found) {
        Loss loss = Loss.between(at, now);
        assertNotNull(loss);
        assertEquals(kind, loss.kind());
        assertEquals(ids, loss.ids());
        assertEquals(found, loss.found());
        assertTrue(loss.expected().contains(String.valueOf(at.last()))
                || loss.expected().contains(String.valueOf(at.last() + 1)));
    }

    @ParameterizedTest(name = "up to {0}: {1}")
    @org.junit.jupiter.params.provider.CsvSource({"6, 0", "7, 0", "8, 1", "9, 2"})
    void whatAllHaveAcknowledgedIsNoBacklog(long last, long expected) {
        assertEquals(
                expected,
                Loss.countMessagesToDelete(
                        new QueueState(60, "b", 0, 9, 6, 9, 4, "", "m9", 7),
                        last,
                        null,
                        java.util.List.of()));
    }

    private static Position at(String born, long last, String mark) {
        return new Position(born, last, mark);
    }

    private static QueueState marked(String mark) {
        return new QueueState(60, "b", 0, 9, 6, 9, 4, mark, "m9");
    }
}
