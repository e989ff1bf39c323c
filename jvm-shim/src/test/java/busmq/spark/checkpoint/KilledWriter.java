package busmq.spark.checkpoint;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Path;

/**
 * Writes files into a folder until it is killed, one byte to stdout for each: new ones, and one
 * that is replaced again and again.
 */
final class KilledWriter {
    private KilledWriter() {}

    /**
     * What a file of this name holds, after a number: long enough to be written in several pieces.
     */
    static String text(String name) {
        return name.repeat(20_000 / name.length());
    }

    public static void main(String[] folder) throws IOException {
        for (int i = 0; ; i++) {
            write(Path.of(folder[0], "log-" + i), false, i);
            write(Path.of(folder[0], "latest"), true, i);
            System.out.write('.');
            System.out.flush();
        }
    }

    private static void write(Path target, boolean replace, int i) throws IOException {
        try (DurableFile file = new DurableFile(target, replace, new CheckpointFsync())) {
            file.write((i + " " + text(target.getFileName().toString())).getBytes(UTF_8));
        } catch (FileAlreadyExistsException ofAnEarlierRound) {
            // Whole, as the test will see.
        }
    }
}
