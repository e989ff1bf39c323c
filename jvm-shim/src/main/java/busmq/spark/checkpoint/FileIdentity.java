package busmq.spark.checkpoint;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/**
 * A file as it is now: another one of its name, a copy that was put in its place, or one that was
 * changed is not equal.
 */
public record FileIdentity(Path path, Map<String, Object> attributes) {
    /** Null where there is no such file, or its disk does not tell. */
    public static FileIdentity of(Path path) {
        try {
            return new FileIdentity(path, Files.readAttributes(path, "unix:dev,ino,ctime"));
        } catch (IOException | UnsupportedOperationException error) {
            return null;
        }
    }
}
