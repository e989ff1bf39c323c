package busmq.spark.sink;

import static org.junit.jupiter.api.Assertions.assertEquals;

import busmq.spark.sink.StagedList.EqualChunks;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.RepetitionInfo;
import org.junit.jupiter.api.Test;

/**
 * The manifest of a batch: bytes that outlive a process, and that the Python sink reads and writes,
 * too.
 */
class BatchManifestTest {
    private static final Path GOLDEN = Path.of("..", "tests", "golden");

    /** {@code digests} null: as version 1 has it. */
    private static List<StagedList> batch(Long... digests) {
        return List.of(
                new StagedList(
                        "orders",
                        0,
                        "bus:queue:orders:stage:7.0.1",
                        List.of(new EqualChunks(1000, 3), new EqualChunks(17, 1)),
                        digests[0]),
                new StagedList(
                        "héllo 😀",
                        2,
                        "bus:queue:héllo 😀:stage:7.1.0",
                        List.of(new EqualChunks(1, 1)),
                        digests[1]),
                new StagedList("orders", 0, "bus:queue:orders:stage:7.1.0", List.of(), digests[2]));
    }

    @Test
    void aManifestIsWrittenAsInTheGoldenFile() throws IOException {
        String written = new String(
                BatchManifestCodec.encode(batch(9007199254740991L, 0L, 17L), 0),
                StandardCharsets.UTF_8);
        assertEquals(Files.readString(GOLDEN.resolve("sink-manifest-v2.json")), written + "\n");
    }

    @Test
    void aManifestOfEitherVersionIsReadForEver() throws IOException {
        assertEquals(
                batch(null, null, null),
                BatchManifestCodec.decode(
                        Files.readAllBytes(GOLDEN.resolve("sink-manifest-v1.json"))));
        assertEquals(
                batch(9007199254740991L, 0L, 17L),
                BatchManifestCodec.decode(
                        Files.readAllBytes(GOLDEN.resolve("sink-manifest-v2.json"))));
    }

    @Test
    void namesOfEveryKindOfCharacterComeBackAsTheyWere() {
        List<StagedList> staged =
                List.of(new StagedList("a\"\\\n\u0001\u2028", 1, "k", List.of(), 5L));
        assertEquals(staged, BatchManifestCodec.decode(BatchManifestCodec.encode(staged, 0)));
    }

    @Test
    void aMillionRowsAreTwoEntries() {
        StagedList.OpenStagedList list = new StagedList.OpenStagedList("q", 0, "s", 1, "k");
        IntStream.range(0, 1000).forEach(i -> list.addChunk(rows(1000)));
        list.addChunk(rows(7));
        assertEquals(
                List.of(new EqualChunks(1000, 1000), new EqualChunks(7, 1)),
                only(list).chunks());
        assertEquals(1_000_007, only(list).rows());
    }

    @RepeatedTest(50)
    void movesFromAnywhereEndAtEachChunkBorderInTurn(RepetitionInfo seed) {
        Random random = new Random(seed.getCurrentRepetition());
        int[] sizes = random.ints(random.nextInt(30), 1, 1001).toArray();
        StagedList.OpenStagedList list = new StagedList.OpenStagedList("q", 0, "s", 1, "k");
        for (int size : sizes) {
            list.addChunk(rows(size));
        }
        StagedList staged = only(list);
        long moved = random.nextLong(staged.rows() + 1);
        long border = 0;
        for (int size : sizes) {
            border += size;
            if (border > moved) {
                moved += staged.chunkAt(moved);
                assertEquals(border, moved);
            }
        }
        assertEquals(staged.rows(), moved);
        assertEquals(0, staged.chunkAt(moved));
    }

    @Test
    void whatIsNotConfirmedWhenTheLinkBreaksGoesOnInASegmentOfItsOwn() {
        StagedList.OpenStagedList list =
                new StagedList.OpenStagedList("q", 0, "q:stages:s", 1, "q:stage:0123456789abcdef");
        list.addChunk(rows(3));
        list.startNextSegment("fedcba9876543210");
        assertEquals(0, list.rows());
        list.addChunk(rows(2));
        List<StagedList> expected = List.of(
                new StagedList(
                        "q",
                        0,
                        "q:stage:0123456789abcdef",
                        List.of(new EqualChunks(3, 1)),
                        StagedList.digest(rows(3))),
                new StagedList(
                        "q",
                        0,
                        "q:stage:fedcba9876543210",
                        List.of(new EqualChunks(2, 1)),
                        StagedList.digest(rows(2))));
        assertEquals(expected, list.segments());
    }

    private static List<byte[]> rows(int count) {
        return Collections.nCopies(count, new byte[] {1});
    }

    private static StagedList only(StagedList.OpenStagedList list) {
        List<StagedList> segments = list.segments();
        assertEquals(1, segments.size());
        return segments.get(0);
    }
}
