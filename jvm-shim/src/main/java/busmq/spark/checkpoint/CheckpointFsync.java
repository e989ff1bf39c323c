package busmq.spark.checkpoint;

import java.io.IOException;
import java.nio.channels.ClosedChannelException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayDeque;
import java.util.Deque;

/** Synchronisation of files and folders with the disk, so that they survive a loss of power. */
public class CheckpointFsync {
    private volatile boolean hasSyncedFolder;

    /** Put the bytes of a file on the disk. */
    protected void sync(FileChannel file) throws IOException {
        file.force(false); // its length goes with the bytes; times of access may wait
    }

    /** Put the names of a folder on the disk. */
    protected void syncFolder(Path folder) throws IOException {
        FileChannel names;
        try {
            names = FileChannel.open(folder, StandardOpenOption.READ);
        } catch (IOException refused) {
            return; // as below, or we may not read it
        }
        try (names) {
            forceFolder(names);
            hasSyncedFolder = true;
        } catch (ClosedChannelException interrupted) {
            throw interrupted;
        } catch (IOException error) {
            // Some mounted disks sync no folder: they keep names as well as they can, and no call
            // of ours changes that. The error's text cannot be compared, it is localised; an
            // earlier sync shows that the disk can sync folders.
            if (hasSyncedFolder) {
                throw error;
            }
        }
    }

    /** Put what a folder holds on the disk. */
    protected void forceFolder(FileChannel folder) throws IOException {
        folder.force(true);
    }

    /** Give a file a second name, which must be new. */
    protected void link(Path name, Path file) throws IOException {
        Files.createLink(name, file);
    }

    /** Make a folder and those above it, so that they stay. */
    protected void makeFolders(Path folder) throws IOException {
        Deque<Path> parents = new ArrayDeque<>();
        for (Path at = folder; at != null && !Files.isDirectory(at); at = at.getParent()) {
            if (at.getParent() != null) {
                parents.push(at.getParent());
            }
        }
        // Otherwise the folder exists, perhaps as a link, which createDirectories would refuse.
        if (!parents.isEmpty()) {
            Files.createDirectories(folder);
        }
        for (Path parent : parents) {
            syncFolder(parent);
        }
    }
}
