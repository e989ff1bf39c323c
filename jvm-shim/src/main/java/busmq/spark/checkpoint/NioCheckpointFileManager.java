package busmq.spark.checkpoint;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.DirectoryIteratorException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.NotDirectoryException;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/**
 * Checkpoint files through java.nio. Spark's managers go through Hadoop, which without its native
 * library starts small programs for every file to set its mode and read links: most of the time of
 * an empty batch.
 *
 * <p>Files of Spark's managers are read and replaced like its own, and the other way round.
 */
public final class NioCheckpointFileManager implements CheckpointFileManager {
    private final Path folder;
    private final LocalFileSystem fileSystem;
    private final CheckpointFsync disk = new CheckpointFsync();

    public NioCheckpointFileManager(Path folder, LocalFileSystem fileSystem) {
        this.folder = folder;
        this.fileSystem = fileSystem;
    }

    @Override
    public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
        try {
            return new Output(path, new DurableFile(localPath(path), overwriteIfPossible, disk));
        } catch (IOException error) {
            throw sneakyThrow(error);
        }
    }

    @Override
    public FSDataInputStream open(Path path) {
        try {
            return fileSystem.getRaw().open(path);
        } catch (IOException error) {
            throw sneakyThrow(error);
        }
    }

    @Override
    public FileStatus[] list(Path path, PathFilter filter) {
        Path whole = fileSystem.makeQualified(path);
        List<FileStatus> found = new ArrayList<>();
        try (DirectoryStream<java.nio.file.Path> names =
                Files.newDirectoryStream(localPath(path))) {
            for (java.nio.file.Path each : names) {
                String name = each.getFileName().toString();
                // Built from parts: a name with a colon is no address.
                Path listed = new Path(whole, new Path(null, null, name));
                if (!isHidden(name) && filter.accept(listed)) {
                    addStatus(found, each, listed);
                }
            }
        } catch (NotDirectoryException file) {
            addStatus(found, localPath(path), whole);
        } catch (DirectoryIteratorException broken) {
            throw sneakyThrow(broken.getCause());
        } catch (NoSuchFileException missing) {
            throw sneakyThrow(new FileNotFoundException(path + " does not exist"));
        } catch (IOException error) {
            throw sneakyThrow(error);
        }
        return found.toArray(FileStatus[]::new);
    }

    private static void addStatus(List<FileStatus> found, java.nio.file.Path file, Path path) {
        try {
            BasicFileAttributes is = Files.readAttributes(file, BasicFileAttributes.class);
            found.add(new FileStatus(
                    is.isDirectory() ? 0 : is.size(),
                    is.isDirectory(),
                    1,
                    0,
                    is.lastModifiedTime().toMillis(),
                    path));
        } catch (NoSuchFileException gone) {
            // Removed while we listed: as if it had been a moment earlier.
        } catch (IOException error) {
            throw sneakyThrow(error);
        }
    }

    /**
     * Checksums that Hadoop keeps beside a file, and hides, too; and files that are not there yet,
     * or never will be, since their writer was killed. Spark begins no query where it finds one
     * beside the first entry of a log.
     */
    private static boolean isHidden(String name) {
        return name.startsWith(".") && (name.endsWith(".crc") || name.endsWith(".tmp"));
    }

    @Override
    public void mkdirs(Path path) {
        try {
            disk.makeFolders(localPath(path));
        } catch (IOException error) {
            throw sneakyThrow(error);
        }
    }

    @Override
    public boolean exists(Path path) {
        return Files.exists(localPath(path));
    }

    @Override
    public void delete(Path path) {
        try {
            fileSystem.delete(path, true); // takes the checksum of another manager with it
        } catch (FileNotFoundException gone) {
            // That is what was asked for.
        } catch (IOException error) {
            throw sneakyThrow(error);
        }
    }

    @Override
    public boolean isLocal() {
        return true;
    }

    @Override
    public Path createCheckpointDirectory() {
        mkdirs(folder);
        return fileSystem.makeQualified(folder);
    }

    private java.nio.file.Path localPath(Path path) {
        return java.nio.file.Path.of(fileSystem.makeQualified(path).toUri().getPath());
    }

    /**
     * Spark's interface is Scala and declares none, but its callers wait for an IOException, not
     * one in another.
     */
    @SuppressWarnings("unchecked")
    private static <E extends Throwable> RuntimeException sneakyThrow(Throwable error) throws E {
        throw (E) error;
    }

    private static final class Output extends CancellableFSDataOutputStream {
        private final Path path;
        private final DurableFile file;

        Output(Path path, DurableFile file) {
            super(file);
            this.path = path;
            this.file = file;
        }

        @Override
        public void close() throws IOException {
            try {
                file.close();
            } catch (java.nio.file.FileAlreadyExistsException taken) {
                // Spark's logs expect this exception.
                throw new FileAlreadyExistsException(path + " already exists");
            }
        }

        @Override
        public void cancel() {
            try {
                file.cancel();
            } catch (IOException ignored) {
                // The caller that cancels has an error of its own to report, and what is left has a
                // hidden name.
            }
        }
    }
}
