package busmq.spark.checkpoint;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class DurableFileTest {
    @TempDir
    Path folder;

    private static void write(Path target, boolean replace, String text) throws IOException {
        try (DurableFile file = new DurableFile(target, replace, new CheckpointFsync())) {
            file.write(text.getBytes(UTF_8));
        }
    }

    private List<String> names() throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(file -> file.getFileName().toString()).sorted().toList();
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void aFileIsThereOnceItIsClosedAndNothingElse(boolean replace) throws IOException {
        Path target = folder.resolve("7");
        DurableFile file = new DurableFile(target, replace, new CheckpointFsync());
        file.write("a whole ".getBytes(UTF_8));
        file.write("batch".getBytes(UTF_8));
        file.flush();
        assertFalse(Files.exists(target));
        file.close();
        file.close();
        assertEquals("a whole batch", Files.readString(target));
        assertEquals(List.of("7"), names());
    }

    @Test
    void anOlderFileIsReplacedOnlyIfItMayBe() throws IOException {
        Path target = folder.resolve("7");
        write(target, false, "first");
        assertThrows(FileAlreadyExistsException.class, () -> write(target, false, "second"));
        assertEquals("first", Files.readString(target));
        write(target, true, "third");
        assertEquals("third", Files.readString(target));
        assertEquals(List.of("7"), names());
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void cancelLeavesEverythingAsItWas(boolean replace) throws IOException {
        Path target = folder.resolve("7");
        write(target, false, "first");
        DurableFile file = new DurableFile(target, replace, new CheckpointFsync());
        file.write("second".getBytes(UTF_8));
        file.cancel();
        file.close();
        assertEquals("first", Files.readString(target));
        assertEquals(List.of("7"), names());
    }

    @Test
    void cancelAfterCloseIsTooLate() throws IOException {
        DurableFile file = new DurableFile(folder.resolve("7"), true, new CheckpointFsync());
        file.close();
        file.cancel();
        assertEquals(List.of("7"), names());
    }

    @Test
    void missingFoldersAreMade() throws IOException {
        Path target = folder.resolve("a/b/7");
        write(target, false, "x");
        assertEquals("x", Files.readString(target));
    }

    @Test
    void theChecksumOfAnEarlierFileGoesWithIt() throws IOException {
        Files.writeString(folder.resolve(".7.crc"), "of another manager");
        write(folder.resolve("7"), true, "x");
        assertEquals(List.of("7"), names());
    }

    @Test
    void aFolderBehindALinkIsAFolder() throws IOException {
        Path real = Files.createDirectory(folder.resolve("real"));
        Path link = Files.createSymbolicLink(folder.resolve("link"), real);
        new CheckpointFsync().makeFolders(link);
        write(link.resolve("new/7"), false, "x");
        assertEquals("x", Files.readString(real.resolve("new/7")));
    }

    /** What a loss of power would break, which no test can cause. */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void theBytesAreOnTheDiskBeforeTheNameAndTheNameBeforeCloseReturns(boolean replace)
            throws IOException {
        Path target = folder.resolve("new/7");
        List<String> synced = new ArrayList<>();
        CheckpointFsync watched = new CheckpointFsync() {
            @Override
            protected void sync(FileChannel file) throws IOException {
                synced.add("bytes, 3 of them: " + (file.size() == 3) + ", name: "
                        + Files.exists(target));
            }

            @Override
            protected void syncFolder(Path at) {
                synced.add(folder.relativize(at) + ", name: " + Files.exists(target));
            }
        };
        try (DurableFile file = new DurableFile(target, replace, watched)) {
            file.write("abc".getBytes(UTF_8));
        }
        assertEquals(
                List.of(", name: false", "bytes, 3 of them: true, name: false", "new, name: true"),
                synced);
    }

    @Test
    void aFailedSyncLeavesNoFile() throws IOException {
        CheckpointFsync full = new CheckpointFsync() {
            @Override
            protected void sync(FileChannel file) throws IOException {
                throw new IOException("no space left");
            }
        };
        DurableFile file = new DurableFile(folder.resolve("7"), true, full);
        assertThrows(IOException.class, file::close);
        assertEquals(List.of(), names());
    }

    private static final CheckpointFsync WITHOUT_LINKS = new CheckpointFsync() {
        @Override
        protected void link(Path name, Path file) throws IOException {
            throw new FileSystemException(
                    name.toString(), file.toString(), "Operation not permitted");
        }
    };

    private static void write(Path target, CheckpointFsync disk) throws IOException {
        try (DurableFile file = new DurableFile(target, false, disk)) {
            file.write("mine".getBytes(UTF_8));
        }
    }

    @Test
    void onADiskWithoutLinksAFileAppearsOnceToo() throws IOException {
        Path target = folder.resolve("7");
        write(target, WITHOUT_LINKS);
        assertThrows(FileAlreadyExistsException.class, () -> write(target, WITHOUT_LINKS));
        assertEquals("mine", Files.readString(target));
        assertEquals(List.of("7"), names());
    }

    @Test
    void onADiskWithoutLinksWhoeverRenamesKeepsTheOthersOutUnlessItDied() throws IOException {
        Path lock = Files.createFile(folder.resolve(".7.lock"));
        assertThrows(
                FileAlreadyExistsException.class, () -> write(folder.resolve("7"), WITHOUT_LINKS));
        assertEquals(List.of(".7.lock"), names());
        Files.setLastModifiedTime(lock, FileTime.from(Instant.now().minusSeconds(120)));
        write(folder.resolve("7"), WITHOUT_LINKS);
        assertEquals(List.of("7"), names());
    }

    @Test
    void ofManyThatFindADeadLockOneAtMostWritesTheFile() throws Exception {
        Path target = folder.resolve("7");
        ExecutorService writers = Executors.newFixedThreadPool(8);
        try {
            for (int round = 0; round < 300; round++) {
                Files.deleteIfExists(target);
                Path lock = Files.createFile(folder.resolve(".7.lock"));
                Files.setLastModifiedTime(lock, FileTime.from(Instant.now().minusSeconds(120)));
                CyclicBarrier start = new CyclicBarrier(8);
                Callable<Integer> writer = () -> {
                    start.await();
                    try {
                        write(target, WITHOUT_LINKS);
                        return 1;
                    } catch (FileAlreadyExistsException kept) {
                        return 0;
                    }
                };
                int written = 0;
                for (Future<Integer> each : writers.invokeAll(Collections.nCopies(8, writer))) {
                    written += each.get();
                }
                assertTrue(written <= 1, written + " have written it");
                Files.deleteIfExists(lock);
            }
        } finally {
            writers.shutdown();
        }
    }

    @Test
    void aLinkWhoseAnswerWasLostIsOurs() throws IOException {
        CheckpointFsync remote = new CheckpointFsync() {
            @Override
            protected void link(Path name, Path file) throws IOException {
                super.link(name, file);
                super.link(name, file);
            }
        };
        write(folder.resolve("7"), remote);
        assertEquals(List.of("7"), names());
    }

    @Test
    void aRefusedLinkIsNoDiskWithoutLinks() throws IOException {
        CheckpointFsync closed = new CheckpointFsync() {
            @Override
            protected void link(Path name, Path file) throws IOException {
                throw new AccessDeniedException(name.toString());
            }
        };
        assertThrows(AccessDeniedException.class, () -> write(folder.resolve("7"), closed));
        assertEquals(List.of(), names());
    }

    @Test
    void aFolderThatCannotBeSyncedIsAnErrorWhereOneCouldBeBefore() throws IOException {
        AtomicInteger broken = new AtomicInteger(2);
        CheckpointFsync failing = new CheckpointFsync() {
            @Override
            protected void forceFolder(FileChannel at) throws IOException {
                if (broken.getAndDecrement() != 1) {
                    throw new IOException("Input/output error");
                }
            }
        };
        write(folder.resolve("7"), failing); // a disk that syncs no folders, as it seems
        write(folder.resolve("8"), failing);
        assertThrows(IOException.class, () -> write(folder.resolve("9"), failing));
    }

    @Test
    void aWriterThatIsKilledLeavesOnlyWholeFiles() throws Exception {
        for (int round = 0; round < 5; round++) {
            Process writer = new ProcessBuilder(
                            ProcessHandle.current().info().command().orElseThrow(),
                            "-cp",
                            System.getProperty("java.class.path"),
                            KilledWriter.class.getName(),
                            folder.toString())
                    .redirectError(ProcessBuilder.Redirect.INHERIT)
                    .start();
            int told = 20 + round * 37;
            // A byte for each pair of files.
            assertEquals(told, writer.getInputStream().readNBytes(told).length);
            writer.destroyForcibly().waitFor();
            List<String> visible =
                    names().stream().filter(name -> !name.startsWith(".")).toList();
            for (int i = 0; i < told; i++) {
                assertTrue(visible.contains("log-" + i));
            }
            for (String name : visible) {
                String text = Files.readString(folder.resolve(name)).replaceFirst("^\\d+ ", "");
                assertTrue(
                        text.equals(KilledWriter.text(name)),
                        name + " has " + text.length() + " characters");
            }
        }
    }
}
