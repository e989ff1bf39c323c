package busmq.spark;

import busmq.spark.checkpoint.NioCheckpointFileManager;
import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/**
 * Checkpoints on a local or mounted disk, fast: see {@link NioCheckpointFileManager}. A checkpoint
 * anywhere else is left to the manager that Spark would have chosen. Gap: Spark makes its
 * checkpoint file manager from the name of a Java class.
 *
 * <p>Named in {@code spark.sql.streaming.checkpointFileManagerClass}; Spark calls the constructor
 * for every folder of a checkpoint.
 */
public final class LocalCheckpointFileManager implements CheckpointFileManager {
    private static final String SETTING = "spark.sql.streaming.checkpointFileManagerClass";

    private final CheckpointFileManager manager;

    public LocalCheckpointFileManager(Path folder, Configuration settings) throws IOException {
        FileSystem system = folder.getFileSystem(settings);
        // Hadoop's, or Hive's that Spark brings: another class was configured for what it does, and
        // is left alone.
        boolean known = system.getClass().getName().startsWith("org.apache.hadoop.");
        manager = known && system instanceof LocalFileSystem local
                ? new NioCheckpointFileManager(folder, local)
                : defaultManager(folder, settings);
    }

    private static CheckpointFileManager defaultManager(Path folder, Configuration settings) {
        Configuration without = new Configuration(settings);
        without.unset(SETTING);
        return CheckpointFileManager.create(folder, without);
    }

    @Override
    public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
        return manager.createAtomic(path, overwriteIfPossible);
    }

    @Override
    public FSDataInputStream open(Path path) {
        return manager.open(path);
    }

    @Override
    public FileStatus[] list(Path path, PathFilter filter) {
        return manager.list(path, filter);
    }

    @Override
    public void mkdirs(Path path) {
        manager.mkdirs(path);
    }

    @Override
    public boolean exists(Path path) {
        return manager.exists(path);
    }

    @Override
    public void delete(Path path) {
        manager.delete(path);
    }

    @Override
    public boolean isLocal() {
        return manager.isLocal();
    }

    @Override
    public Path createCheckpointDirectory() {
        return manager.createCheckpointDirectory();
    }

    @Override
    public void close() {
        manager.close();
    }
}
