package busmq.spark.core;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.params.provider.Arguments.arguments;

import busmq.spark.BusException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * The offset in the checkpoint: bytes that outlive every process, and that the Python source reads
 * and writes, too.
 */
class OffsetJsonTest {
    private static final Path GOLDEN = Path.of("..", "tests", "golden", "offset-v1.json");

    static Stream<Arguments> vectors() throws IOException {
        JsonNode found = new ObjectMapper().readTree(GOLDEN.toFile()).get("vectors");
        return StreamSupport.stream(found.spliterator(), false)
                .map(vector -> arguments(
                        vector.get("says").asText(),
                        vector.get("text").asText(),
                        positions(vector.get("queues"))));
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("vectors")
    void anOffsetKeptForEverIsReadAndWrittenByteForByte(
            String says, String text, Map<String, Position> queues) {
        assertEquals(queues, OffsetJson.decode(text));
        assertEquals(
                text,
                text.equals(OffsetJson.INITIAL) ? OffsetJson.INITIAL : OffsetJson.encode(queues));
    }

    @Test
    void theTextIsThatOfPythonForEveryKindOfCharacterAndSortedByCodePoint() {
        Map<String, Position> queues = new LinkedHashMap<>();
        queues.put("\uffee", new Position("b", 1, ""));
        queues.put("\ud83d\ude00", new Position("b", 2, ""));
        queues.put("a\"\\\n\u0001\u007f", new Position("b", 3, ""));
        assertEquals(
                "{\"v\": 1, \"queues\": {\"a\\\"\\\\\\n"
                        + "\\u0001\\u007f\": {\"born\": \"b\", \"last\": 3, \"mark\": \"\"},"
                        + " \"\\uffee\": {\"born\": \"b\", \"last\": 1, \"mark\": \"\"},"
                        + " \"\\ud83d\\ude00\": {\"born\": \"b\", \"last\": 2, \"mark\": \"\"}}}",
                OffsetJson.encode(queues));
        assertEquals(queues, OffsetJson.decode(OffsetJson.encode(queues)));
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "{}",
                "{\"v\": 1, \"offsets\": {}}",
                "{\"v\": 1, \"queues\": []}",
                "{\"v\": 1, \"queues\": {\"q\": {}}}",
                "{\"v\": 1, \"queues\": {\"q\": {\"born\": \"b\", \"last\": \"x\", \"mark\":"
                        + " \"\"}}}",
                "{\"v\": 1, \"queues\": {\"q\": 41}}",
                "{\"v\": 1, \"queues\": {\"q\": {\"born\": \"b\", \"last\": -1, \"mark\": \"\"}}}",
                "{\"v\": 1, \"queues\": {\"q\": {\"born\": \"b\", \"last\": 1.5, \"mark\": \"\"}}}",
                "{\"v\": 1, \"queues\": {\"q\": {\"born\": \"b\", \"last\": 1e308, \"mark\":"
                        + " \"\"}}}",
                "{\"v\": 1, \"queues\": {\"q\": {\"born\": \"b\", \"last\": null, \"mark\":"
                        + " \"\"}}}",
                "{\"v\": 1, \"queues\": {\"q\": {\"born\": \"b\", \"last\": 9007199254740992,"
                        + " \"mark\": \"\"}}}",
                "{\"v\": 1, \"queues\": {\"q\": {\"born\": \"b\", \"last\": 1, \"mark\": \"\","
                        + " \"from\": -1}}}",
                "{\"orders\": {\"0\": 41}}",
                "41",
                "null",
                "\"latest\"",
                "latest"
            })
    void anOffsetOfAnotherSourceIsRefusedWithWhatWasFound(String garbage) {
        String message = assertThrows(BusException.class, () -> OffsetJson.decode(garbage))
                .getMessage();
        assertTrue(
                message.contains("does not hold busmq offsets")
                        && message.contains("use a new checkpoint"),
                message);
    }

    @Test
    void anOffsetOfALaterVersionSaysWhichAndWhatToDo() {
        String message = assertThrows(
                        BusException.class, () -> OffsetJson.decode("{\"v\": 2, \"queues\": {}}"))
                .getMessage();
        assertTrue(
                message.contains("offsets of version 2, this package reads version 1; update it"),
                message);
    }

    @Test
    void anOffsetWithLinksSaysWhichEngineReadsIt() {
        String message = assertThrows(
                        BusException.class,
                        () -> OffsetJson.decode("{\"v\": 1, \"queues\": {}, \"sources\": {}}"))
                .getMessage();
        assertTrue(message.contains("set engine=python"), message);
    }

    static Stream<Arguments> beginnings() {
        return Stream.of(
                arguments("a batch begins where the one before ended", at(5), at(9), 5),
                arguments("no batch", at(5), at(5), 5),
                arguments("a queue that enters begins after its from", null, at(9, 3), 3),
                arguments(
                        "a queue that entered and stands still is not read again",
                        at(5, 0),
                        at(5, 0),
                        5),
                arguments("the batch after the one that entered", at(5, 0), at(9), 5),
                arguments(
                        "after a removal, at the oldest stored",
                        at(5),
                        new Position("b", 9, "", 7L, 2),
                        7),
                arguments(
                        "after a rollback, at the oldest stored",
                        at(500),
                        new Position("b", 3, "", 0L, 1),
                        0),
                arguments(
                        "after a new life, at its oldest stored",
                        new Position("old", 5, ""),
                        new Position("new", 3, "", 0L, 1),
                        0),
                arguments(
                        "planned before the start was known, earliest: nothing twice",
                        at(5),
                        at(9, 0),
                        5),
                arguments(
                        "planned before the start was known, latest: nothing lost",
                        at(5),
                        at(9, 9),
                        5),
                arguments(
                        "planned before the start was known, on a Redis that went back: at the"
                                + " oldest stored",
                        at(500),
                        at(3, 0),
                        0));
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("beginnings")
    void whereABatchBegins(String says, Position start, Position end, long done) {
        assertEquals(done, OffsetJson.lastIdBeforeBatch(start, end));
    }

    @Test
    void aBatchIntoALifeThatNeverEnteredIsRefused() {
        assertThrows(BusException.class, () -> OffsetJson.lastIdBeforeBatch(null, at(9)));
        assertThrows(
                BusException.class,
                () -> OffsetJson.lastIdBeforeBatch(new Position("old", 5, ""), at(9)));
    }

    private static Position at(long last) {
        return new Position("b", last, "");
    }

    private static Position at(long last, long start) {
        return new Position("b", last, "", start, 0);
    }

    private static Map<String, Position> positions(JsonNode queues) {
        Map<String, Position> found = new LinkedHashMap<>();
        queues.fields().forEachRemaining(entry -> {
            JsonNode fields = entry.getValue();
            Long start = fields.get(3).isNull() ? null : fields.get(3).longValue();
            found.put(
                    entry.getKey(),
                    new Position(
                            fields.get(0).asText(),
                            fields.get(1).longValue(),
                            fields.get(2).asText(),
                            start,
                            fields.get(4).longValue()));
        });
        return found;
    }
}
