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
import java.util.UUID;

/**
 * A file that is there whole when {@link #close} has returned, and stays so if the machine loses its power, or else is not there at all.
 *
 * <p>The rules: the bytes are on the disk before the name is, the name appears in one step, and the folder that holds the name is on the disk
 * before anybody is told. Whoever dies on the way leaves at most a hidden file {@code .name.<uuid>.tmp}, which nothing reads.
 */
public final class DurableFile extends OutputStream {
    private final Path target;
    private final boolean replace;
    private final Disk disk;
    private final Path hidden;
    private final FileChannel channel;
    private final OutputStream out;
    private boolean done;

    /** {@code replace}: an older file of this name gives way; otherwise it makes {@link #close} fail, and stays. */
    public DurableFile(Path target, boolean replace, Disk disk) throws IOException {
        this.target = target;
        this.replace = replace;
        this.disk = disk;
        hidden = target.resolveSibling("." + target.getFileName() + "." + UUID.randomUUID() + ".tmp");
        channel = opened();
        out = new BufferedOutputStream(Channels.newOutputStream(channel));
    }

    private FileChannel opened() throws IOException {
        try {
            return FileChannel.open(hidden, StandardOpenOption.WRITE, StandardOpenOption.CREATE_NEW);
        } catch (NoSuchFileException noFolder) {
            disk.makeFolders(target.getParent());
            return FileChannel.open(hidden, StandardOpenOption.WRITE, StandardOpenOption.CREATE_NEW);
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
        if (done) {
            return;
        }
        done = true;
        try (channel) {
            out.flush();
            disk.sync(channel);
            appear();
            disk.syncFolder(target.getParent());
        } finally {
            Files.deleteIfExists(hidden);
        }
    }

    /** Leave everything as it was before this file was begun. */
    public void cancel() throws IOException {
        if (!done) {
            done = true;
            try (channel) {
                Files.deleteIfExists(hidden);
            }
        }
    }

    private void appear() throws IOException {
        // Left by another manager for an earlier file of this name: it would call the new one damaged.
        Files.deleteIfExists(target.resolveSibling("." + target.getFileName() + ".crc"));
        if (replace) {
            Files.move(hidden, target, StandardCopyOption.ATOMIC_MOVE);
            return;
        }
        try {
            Files.createLink(target, hidden); // unlike a rename, it never replaces
        } catch (FileAlreadyExistsException taken) {
            throw taken;
        } catch (UnsupportedOperationException | FileSystemException noLinks) { // some mounted disks have none
            if (Files.exists(target)) {
                throw new FileAlreadyExistsException(target.toString());
            }
            Files.move(hidden, target, StandardCopyOption.ATOMIC_MOVE);
        }
    }
}
