package busmq.spark.sink;

import busmq.spark.SharedPythonConstants;
import busmq.spark.checkpoint.DurableFile;
import busmq.spark.checkpoint.FileIdentity;
import busmq.spark.core.MessageFingerprint;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Predicate;
import java.util.stream.Stream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.classic.SparkSession;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Which part of its sources a batch covers, as the offset log of the checkpoint says: a batch that
 * comes again is the same where its span is.
 */
final class CheckpointOffsetLog {
    private static final Logger LOG = LoggerFactory.getLogger(CheckpointOffsetLog.class);
    /** Files with query ids that this process has synced. The id in a checkpoint never changes. */
    private static final Set<FileIdentity> SYNCED_QUERIES = ConcurrentHashMap.newKeySet();
    /** Puts a file or the names of a folder on the disk, if it can. Another one in tests. */
    static Predicate<java.nio.file.Path> syncToDisk = CheckpointOffsetLog::syncPath;
    /** Queries whose checkpoint was not found. */
    private static final Set<String> UNKNOWN = ConcurrentHashMap.newKeySet();

    private static final int MAX_SHOWN_CHARACTERS =
            SharedPythonConstants.intNumber("maxShownCharacters");

    private CheckpointOffsetLog() {}

    /**
     * {@code digest:end offsets}, as spark/write/committer.py of the Python package; empty
     * where the checkpoint is not known, or cannot be read.
     */
    static String readBatchSpan(String checkpoint, long batch) {
        String end = checkpoint == null ? null : readPlannedOffsets(checkpoint, batch);
        if (end == null) {
            return "";
        }
        String start = readPlannedOffsets(checkpoint, batch - 1);
        String both = (start == null ? "" : start) + "\n\n" + end;
        return new BatchSpan(
                        shortDigest(both),
                        end.substring(0, Math.min(MAX_SHOWN_CHARACTERS, end.length())),
                        shortDigest(place(checkpoint)))
                .text();
    }

    private static String shortDigest(String text) {
        return MessageFingerprint.hexDigest("SHA-256", StandardCharsets.UTF_8.encode(text))
                .substring(0, 32);
    }

    /** Of a folder of this machine the real path, as Python has it; else the address. */
    private static String place(String checkpoint) {
        java.nio.file.Path folder = localFolder(checkpoint);
        try {
            return folder == null ? checkpoint : folder.toRealPath().toString();
        } catch (IOException error) {
            return folder.toAbsolutePath().normalize().toString();
        }
    }

    /** Null where the checkpoint is not on this machine. */
    private static java.nio.file.Path localFolder(String checkpoint) {
        URI address = new Path(checkpoint).toUri();
        return address.getScheme() == null || address.getScheme().equals("file")
                ? java.nio.file.Path.of(address.getPath())
                : null;
    }

    /**
     * Where the checkpoint of a running query is, as Spark has resolved it from the option or from
     * the settings of the session. Null where that cannot be found out; then it is said once.
     *
     * @param option what option checkpointLocation says; null: nothing
     */
    static String find(String query, String option) {
        try {
            Object running = SparkSession.active()
                    .sharedState()
                    .activeStreamingQueries()
                    .get(UUID.fromString(query));
            if (running != null) {
                return (String)
                        running.getClass().getMethod("resolvedCheckpointRoot").invoke(running);
            }
        } catch (ReflectiveOperationException
                | LinkageError
                | IllegalArgumentException
                | IllegalStateException error) {
            LOG.debug("Spark does not say where the checkpoint of query {} is", query, error);
        }
        if (option == null && UNKNOWN.add(query)) {
            LOG.warn(
                    "The checkpoint of query {} is not found from here, so the offsets of a batch"
                        + " are not known to its sink: a batch that comes again must have the same"
                        + " rows, or the query stops (BUSMQ_BATCH_CHANGED). Name the checkpoint"
                        + " with option checkpointLocation",
                    query);
        }
        return option;
    }

    /**
     * Put on the disk what says that this query planned this batch, as
     * spark/write/committer.py of the Python package: Spark's own managers sync nothing. A
     * file that this process has synced is left alone. Nothing is done where the checkpoint is not
     * known or not a folder of this machine, and no error is thrown where its disk syncs nothing.
     */
    static void syncBatchToDisk(String checkpoint, long batch) {
        if (checkpoint == null) {
            return;
        }
        java.nio.file.Path folder = localFolder(checkpoint);
        if (folder == null) {
            return;
        }
        java.nio.file.Path log = folder.resolve("offsets");
        if (!DurableFile.isNewest(log.resolve(Long.toString(batch)))) {
            List.of(log.resolve(Long.toString(batch)), log.resolve("." + batch + ".crc"), log)
                    .forEach(syncToDisk::test);
        }
        FileIdentity query = FileIdentity.of(folder.resolve("metadata"));
        if (query != null && SYNCED_QUERIES.contains(query)) {
            return;
        }
        syncToDisk.test(folder.resolve(".metadata.crc")); // which our own manager does not write
        long kept = Stream.of(folder.resolve("metadata"), folder, folder.getParent())
                .filter(syncToDisk)
                .count();
        if (kept == 3 && query != null) {
            SYNCED_QUERIES.add(query);
        }
    }

    private static boolean syncPath(java.nio.file.Path path) {
        try (FileChannel file = FileChannel.open(path, StandardOpenOption.READ)) {
            file.force(true);
            return true;
        } catch (IOException error) {
            LOG.debug("{} is not synced: {}", path, error.getMessage());
            return false;
        }
    }

    /**
     * The offsets in an entry of the log, without the version and the metadata, which has the time
     * of planning; null when there is none.
     */
    private static String readPlannedOffsets(String checkpoint, long batch) {
        Path path = new Path(new Path(checkpoint, "offsets"), Long.toString(batch));
        try {
            String[] parts = new String(readFile(path), StandardCharsets.UTF_8).split("\n", 3);
            return parts.length == 3 ? parts[2] : null;
        } catch (FileNotFoundException | NoSuchFileException error) {
            return null;
        } catch (IOException error) {
            LOG.info("The offset log at {} cannot be read: {}", path, error.getMessage());
            return null;
        }
    }

    /**
     * Of a local file without Hadoop, which opens two files and a checksum for it: the commit of a
     * batch waits for this.
     */
    static byte[] readFile(Path path) throws IOException {
        FileSystem system = path.getFileSystem(SparkContext.getOrCreate().hadoopConfiguration());
        if (system instanceof LocalFileSystem) {
            return Files.readAllBytes(
                    java.nio.file.Path.of(system.makeQualified(path).toUri().getPath()));
        }
        try (InputStream in = system.open(path)) {
            return in.readAllBytes();
        }
    }
}
