package busmq.spark.sink;

import busmq.spark.Contract;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Which part of its sources a batch covers, as the offset log of the checkpoint says: what makes a batch that comes again the same one. */
final class BatchSpan {
    private static final Logger LOG = LoggerFactory.getLogger(BatchSpan.class);
    private static final int SHOWN = Contract.whole("spanShown");

    private BatchSpan() {
    }

    /** {@code digest:end offsets}, as spark/batch_span.py of the Python package; empty where the checkpoint is not known, or cannot be read. */
    static String of(String checkpoint, long batch) {
        String end = checkpoint == null ? null : entry(checkpoint, batch);
        if (end == null) {
            return "";
        }
        String start = entry(checkpoint, batch - 1);
        String both = (start == null ? "" : start) + "\n\n" + end;
        return digest(both) + ":" + end.substring(0, Math.min(SHOWN, end.length()));
    }

    /** The offsets in an entry of the log, without the version and the metadata, which has the time of planning; null when there is none. */
    private static String entry(String checkpoint, long batch) {
        Path path = new Path(new Path(checkpoint, "offsets"), Long.toString(batch));
        try (InputStream in = path.getFileSystem(SparkContext.getOrCreate().hadoopConfiguration()).open(path)) {
            String[] parts = new String(in.readAllBytes(), StandardCharsets.UTF_8).split("\n", 3);
            return parts.length == 3 ? parts[2] : null;
        } catch (FileNotFoundException error) {
            return null;
        } catch (IOException error) {
            LOG.info("The offset log at {} cannot be read: {}", path, error.getMessage());
            return null;
        }
    }

    private static String digest(String text) {
        try {
            byte[] whole = MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8));
            return HexFormat.of().formatHex(whole).substring(0, 32);
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }
}
