package busmq.spark.checkpoint;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.UUID;

/**
 * A file that is there whole when {@link #close} has returned, and stays so if the machine loses
 * its power, or else is not there at all.
 *
 * <p>The rules: the bytes are on the disk before the name is, the name appears in one step, and the
 * folder that holds the name is on the disk before {@link #close} returns. A process killed before
 * that leaves at most a hidden file {@code .name.<uuid>.tmp}, which nothing reads.
 */
public final class DurableFile extends OutputStream {
    /** The writer that made a lock this old has died: a lock is held for one rename. */
    private static final long ABANDONED_LOCK_MS = 60_000;

    private static final int MOST_FOLDERS = 1000;
    /** The newest file of each folder that this process has put there. */
    private static final Map<Path, FileIdentity> NEWEST_FILES =
            new LinkedHashMap<>(16, 0.75f, true) {
                private static final long serialVersionUID = 1;

                @Override
                protected boolean removeEldestEntry(Map.Entry<Path, FileIdentity> eldest) {
                    return size() > MOST_FOLDERS;
                }
            };

    private final Path target;
    private final boolean replace;
    private final CheckpointFsync disk;
    private final Path hidden;
    private final FileChannel channel;
    private final OutputStream out;
    private boolean closed;

    /**
     * {@code replace}: an older file of this name is replaced; otherwise it stays, and
     * {@link #close} fails.
     */
    public DurableFile(Path target, boolean replace, CheckpointFsync disk) throws IOException {
        this.target = target;
        this.replace = replace;
        this.disk = disk;
        hidden = target.resolveSibling(
                "." + target.getFileName() + "." + UUID.randomUUID() + ".tmp");
        channel = openHidden();
        out = new BufferedOutputStream(Channels.newOutputStream(channel));
    }

    private FileChannel openHidden() throws IOException {
        try {
            return FileChannel.open(
                    hidden, StandardOpenOption.WRITE, StandardOpenOption.CREATE_NEW);
        } catch (NoSuchFileException noFolder) {
            disk.makeFolders(target.getParent());
            return FileChannel.open(
                    hidden, StandardOpenOption.WRITE, StandardOpenOption.CREATE_NEW);
        }
    }

    @Override
    public void write(int one) throws IOException {
        out.write(one);
    }

    @Override
    public void write(byte[] bytes, int from, int count) throws IOException {
        out.write(bytes, from, count);
    }

    /** To the file, not yet to the disk. */
    @Override
    public void flush() throws IOException {
        out.flush();
    }

    /** @throws FileAlreadyExistsException if there is such a file that may not be replaced */
    @Override
    public void close() throws IOException {
        if (closed) {
            return;
        }
        closed = true;
        try (channel) {
            out.flush();
            disk.sync(channel);
            putInPlace();
            disk.syncFolder(target.getParent());
        } finally {
            Files.deleteIfExists(hidden);
        }
        synchronized (NEWEST_FILES) {
            // A hidden name that goes changes the file.
            NEWEST_FILES.put(target.getParent(), FileIdentity.of(target));
        }
    }

    /**
     * Whether this process has put this file where it is, and no other into its folder since: it is
     * on the disk then, and so is its name.
     */
    public static boolean isNewest(Path file) {
        FileIdentity now = FileIdentity.of(file);
        synchronized (NEWEST_FILES) {
            return now != null && now.equals(NEWEST_FILES.get(file.getParent()));
        }
    }

    /** Leave everything as it was before this file was begun. */
    public void cancel() throws IOException {
        if (!closed) {
            closed = true;
            try (channel) {
                Files.deleteIfExists(hidden);
            }
        }
    }

    private void putInPlace() throws IOException {
        // The checksum that another manager wrote for an earlier file of this name: by it the new
        // file would count as damaged.
        Files.deleteIfExists(target.resolveSibling("." + target.getFileName() + ".crc"));
        if (replace) {
            Files.move(hidden, target, StandardCopyOption.ATOMIC_MOVE);
            return;
        }
        try {
            disk.link(target, hidden); // unlike a rename, it never replaces
        } catch (FileAlreadyExistsException taken) {
            checkIsThisFile(taken);
        } catch (UnsupportedOperationException noLinks) {
            renameUnderLock();
        } catch (FileSystemException refused) {
            if (refused.getClass() != FileSystemException.class) {
                throw refused; // one that Java knows: we may not write there, or the folder is gone
            }
            // A broken disk fails there again; the text of a failed link cannot be compared, it is
            // localised.
            renameUnderLock();
        }
    }

    /**
     * Over a network the answer to our own link may be lost: the client repeats the request, and
     * the server replies that the name is taken.
     */
    private void checkIsThisFile(FileAlreadyExistsException taken) throws IOException {
        if (!Files.isSameFile(target, hidden)) {
            throw taken;
        }
    }

    /**
     * For mounted disks without links. A rename replaces, so a writer holds a lock from its check
     * to its rename.
     */
    private void renameUnderLock() throws IOException {
        Path lock = target.resolveSibling("." + target.getFileName() + ".lock");
        if (isAbandoned(lock)) {
            breakLock(lock);
        }
        Files.createFile(lock);
        try {
            if (Files.exists(target)) {
                checkIsThisFile(new FileAlreadyExistsException(target.toString()));
                return;
            }
            Files.move(hidden, target, StandardCopyOption.ATOMIC_MOVE);
        } finally {
            Files.deleteIfExists(lock);
        }
    }

    /**
     * Of two writers that have seen the same abandoned lock only one may delete it: the second
     * would delete the new lock of the first.
     */
    private void breakLock(Path lock) throws IOException {
        Path breaking = Files.createFile(lock.resolveSibling(lock.getFileName() + ".break"));
        try {
            if (isAbandoned(lock)) {
                Files.deleteIfExists(lock);
            }
        } finally {
            Files.deleteIfExists(breaking);
        }
    }

    private boolean isAbandoned(Path lock) throws IOException {
        try {
            // Both times are from the clock of the disk.
            return modifiedMs(hidden) - modifiedMs(lock) > ABANDONED_LOCK_MS;
        } catch (NoSuchFileException gone) {
            return false;
        }
    }

    private static long modifiedMs(Path file) throws IOException {
        return Files.getLastModifiedTime(file).toMillis();
    }
}
