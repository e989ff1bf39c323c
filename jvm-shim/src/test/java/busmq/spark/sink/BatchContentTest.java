package busmq.spark.sink;

import static org.junit.jupiter.api.Assertions.assertEquals;

import busmq.spark.sink.StagedList.EqualChunks;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/**
 * When a batch that comes again is the same one. tests/core/test_sink.py says the same of the
 * Python sink.
 */
class BatchContentTest {
    @Test
    void rowsAreTheSameInWhateverOrderAndPartsTheyCome() {
        StagedBatchContent one = new StagedBatchContent("", List.of(list("q", "a", "b", "c")));
        assertEquals(
                Map.of(),
                one.differencesTo(
                        new StagedBatchContent("", List.of(list("q", "c"), list("q", "b", "a")))));
        assertEquals(
                "rows",
                one.differencesTo(new StagedBatchContent(
                                "", List.of(list("q", "c"), list("q", "b", "b"))))
                        .get("by"));
        assertEquals(
                "rows",
                one.differencesTo(new StagedBatchContent("x:y", List.of(list("r", "a", "b", "c"))))
                        .get("by"));
    }

    @Test
    void whereTheOffsetsAreKnownTheyDecide() {
        StagedBatchContent one = new StagedBatchContent("abc:x", List.of(list("q", "a")));
        assertEquals(
                Map.of(),
                one.differencesTo(new StagedBatchContent("abc:", List.of(list("q", "b", "c")))));
        Map<String, Object> changed =
                one.differencesTo(new StagedBatchContent("abd:y", List.of(list("q", "a"))));
        assertEquals(
                List.of("offsets", "up to x", "up to y"),
                List.of(changed.get("by"), changed.get("found"), changed.get("expected")));
    }

    @Test
    void aSpanNamesTheCheckpointAndOneOfAnOlderVersionDoesNot() {
        BatchSpan span = new BatchSpan("abc", "{}\n{\"a\":1}", "place");
        assertEquals(span, BatchSpan.parse(span.text()));
        assertEquals("abc:{}\n{\"a\":1}\n@place", span.text());
        assertEquals(new BatchSpan("abc", "x:y", ""), BatchSpan.parse("abc:x:y"));
        assertEquals(new BatchSpan("", "", ""), BatchSpan.parse(""));
    }

    @Test
    void anotherCheckpointMayWriteToTheSameQueuesOnly() {
        StagedBatchContent one =
                new StagedBatchContent("abc:\n@here", List.of(list("q", "a"), list("r", "a")));
        assertEquals(
                false,
                one.hasOtherQueuesOfACopy(
                        new StagedBatchContent("abc:\n@here", List.of(list("s", "a")))));
        assertEquals(
                false,
                one.hasOtherQueuesOfACopy(new StagedBatchContent("abc:", List.of(list("s", "a")))));
        assertEquals(
                false,
                one.hasOtherQueuesOfACopy(
                        new StagedBatchContent("abc:\n@copy", List.of(list("r", "a")))));
        assertEquals(
                true,
                one.hasOtherQueuesOfACopy(new StagedBatchContent(
                        "abc:\n@copy", List.of(list("r", "a"), list("s", "a")))));
        assertEquals(
                Set.of("t", "q"),
                StagedBatchContent.targets(
                        List.of(list("t/0", "a"), list("t/1", "a"), list("q", "a"), list("z")),
                        true));
    }

    @Test
    void ofAManifestWithoutDigestsTheCountsDecide() {
        StagedBatchContent old = new StagedBatchContent(
                "", List.of(new StagedList("q", 0, "k", List.of(new EqualChunks(2, 1)), null)));
        assertEquals(
                Map.of(),
                old.differencesTo(new StagedBatchContent("", List.of(list("q", "a", "b")))));
        assertEquals(
                "3 rows for 'q'",
                old.differencesTo(new StagedBatchContent("", List.of(list("q", "a", "b", "c"))))
                        .get("expected"));
    }

    @Test
    void aDigestIsThatOfThePythonSink() {
        List<byte[]> values = Stream.of("", "a", "h\u00e9llo")
                .map(text -> text.getBytes(StandardCharsets.UTF_8))
                .toList();
        assertEquals(6559055993L, StagedList.digest(values));
    }

    private static StagedList list(String queue, String... values) {
        List<byte[]> rows = Stream.of(values)
                .map(text -> text.getBytes(StandardCharsets.UTF_8))
                .toList();
        return new StagedList(
                queue, 0, "k", List.of(new EqualChunks(rows.size(), 1)), StagedList.digest(rows));
    }
}
