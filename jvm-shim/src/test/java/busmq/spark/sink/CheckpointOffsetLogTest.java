package busmq.spark.sink;

import static org.junit.jupiter.api.Assertions.assertEquals;

import busmq.spark.checkpoint.CheckpointFsync;
import busmq.spark.checkpoint.DurableFile;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Predicate;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * What is put on the disk before a batch is recorded; tests/spark/test_offset_log.py is the same
 * for the sink in Python.
 */
class CheckpointOffsetLogTest {
    private static final List<String> ENTRY = List.of(".crc", "entry", "offsets");
    private static final List<String> QUERY =
            List.of(".metadata.crc", "above", "checkpoint", "metadata");

    @TempDir
    Path above;

    private Path checkpoint;
    private final Set<String> failing = new TreeSet<>();
    private final List<String> synced = new ArrayList<>();
    private Predicate<Path> before;

    @BeforeEach
    void begin() throws IOException {
        checkpoint = above.resolve("checkpoint");
        Files.createDirectories(checkpoint.resolve("offsets"));
        Files.writeString(checkpoint.resolve("metadata"), "{\"id\":\"1\"}");
        for (int batch = 0; batch < 4; batch++) {
            Files.writeString(
                    checkpoint.resolve("offsets").resolve("" + batch), "v1\n{}\n" + batch);
        }
        before = CheckpointOffsetLog.syncToDisk;
        CheckpointOffsetLog.syncToDisk = path -> {
            String name = path.equals(above)
                    ? "above"
                    : path.getFileName()
                            .toString()
                            .replaceAll("^\\d+$", "entry")
                            .replaceAll("^\\.\\d+", "");
            synced.add(name);
            return !failing.contains(name);
        };
    }

    @AfterEach
    void end() {
        CheckpointOffsetLog.syncToDisk = before;
    }

    private List<String> sync(long batch) {
        synced.clear();
        CheckpointOffsetLog.syncBatchToDisk("file:" + checkpoint, batch);
        return synced.stream().sorted().toList();
    }

    private static List<String> all() {
        List<String> all = new ArrayList<>(ENTRY);
        all.addAll(QUERY);
        return all.stream().sorted().toList();
    }

    @Test
    void whatSaysWhichQueryItIsIsSyncedOnceAndTheEntryOfTheLogWithEachBatch() {
        assertEquals(all(), sync(0));
        assertEquals(ENTRY, sync(1));
        assertEquals(ENTRY, sync(1));
    }

    @Test
    void anotherQueryInTheSamePlaceIsSyncedAsIsACopyOfTheSame() throws IOException {
        sync(0);
        Path metadata = checkpoint.resolve("metadata");
        Path copy = Files.copy(
                metadata, checkpoint.resolve("copy"), StandardCopyOption.COPY_ATTRIBUTES);
        Files.move(copy, metadata, StandardCopyOption.REPLACE_EXISTING);
        assertEquals(all(), sync(1));
        Files.delete(metadata);
        Files.writeString(metadata, "{\"id\":\"2\"}");
        assertEquals(all(), sync(1));
    }

    @Test
    void whatCouldNotBeSyncedIsTriedAgainAndKeepsNothingElseFromIt() {
        for (String name : List.of("metadata", "checkpoint", "above")) {
            failing.add(name);
            assertEquals(all(), sync(0));
            failing.clear();
        }
        assertEquals(all(), sync(0));
        assertEquals(ENTRY, sync(0));
    }

    @Test
    void anEntryThatThisProcessHasPutOnTheDiskIsThere() throws IOException {
        sync(0);
        Path entry = checkpoint.resolve("offsets").resolve("4");
        try (DurableFile file = new DurableFile(entry, false, new CheckpointFsync())) {
            file.write('4');
        }
        assertEquals(List.of(), sync(4));
        assertEquals(ENTRY, sync(3), "another one");
        Path copy =
                Files.copy(entry, checkpoint.resolve("copy"), StandardCopyOption.COPY_ATTRIBUTES);
        Files.move(copy, entry, StandardCopyOption.REPLACE_EXISTING);
        assertEquals(ENTRY, sync(4), "a copy in its place");
    }
}
