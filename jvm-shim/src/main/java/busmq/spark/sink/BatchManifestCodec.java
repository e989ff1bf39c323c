package busmq.spark.sink;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * The text that says which staged lists make up a batch, in the order of appending (version 2, as
 * busmq_spark/writing/sink.py writes it).
 */
final class BatchManifestCodec {
    private static final ObjectMapper JSON = new ObjectMapper();

    private BatchManifestCodec() {}

    /** {@code made} is the epoch of the run that records the batch, 0 where that is not known. */
    static byte[] encode(List<StagedList> staged, long made) {
        ObjectNode root = JSON.createObjectNode().put("v", 2);
        ArrayNode lists = root.putArray("lists");
        for (StagedList s : staged) {
            ArrayNode list = lists.addArray().add(s.queue()).add(s.server()).add(s.key());
            ArrayNode runs = list.addArray();
            for (StagedList.EqualChunks run : s.chunks()) {
                runs.addArray().add(run.size()).add(run.times());
            }
            list.add(s.digest());
        }
        if (made != 0) {
            root.put("made", made);
        }
        return root.toString().getBytes(StandardCharsets.UTF_8);
    }

    /** Also version 1, which has no digests. */
    static List<StagedList> decode(byte[] text) {
        try {
            List<StagedList> found = new ArrayList<>();
            JsonNode root = JSON.readTree(text);
            long made = root.path("made").longValue();
            for (JsonNode list : root.get("lists")) {
                List<StagedList.EqualChunks> runs = new ArrayList<>();
                for (JsonNode run : list.get(3)) {
                    runs.add(new StagedList.EqualChunks(
                            run.get(0).intValue(), run.get(1).intValue()));
                }
                Long digest = list.hasNonNull(4) ? list.get(4).longValue() : null;
                found.add(new StagedList(
                        list.get(0).textValue(),
                        list.get(1).intValue(),
                        list.get(2).textValue(),
                        runs,
                        digest,
                        made));
            }
            return found;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
