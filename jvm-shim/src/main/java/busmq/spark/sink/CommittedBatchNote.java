package busmq.spark.sink;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import busmq.spark.PyText;
import busmq.spark.SharedPythonConstants;
import busmq.spark.core.MessageFingerprint;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.NoSuchFileException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The note of the last batch that a sink has appended, in the checkpoint of its query. By this note
 * the sink notices a Redis that is older than the checkpoint. {@code writing/sink_rollback.py} has
 * the rules and the format.
 */
record CommittedBatchNote(String checkpoint, String sink) {
    private static final Logger LOG = LoggerFactory.getLogger(CommittedBatchNote.class);
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String FILE = SharedPythonConstants.text("committedBatchFile");
    private static final int VERSION = SharedPythonConstants.intNumber("committedBatchVersion");
    private static final int MAX_NOTED_QUEUES = SharedPythonConstants.intNumber("maxNotedQueues");
    private static final long RECORD_EXPIRES_MS = SharedPythonConstants.number("recordExpiresMs");
    private static final Pattern PROGRESS = Pattern.compile("(\\d+):(\\w+).*");
    /**
     * The note that this process has written last, by checkpoint. It is not read again in the run
     * that made it: a read of an object store takes as long as a batch.
     */
    private static final Map<String, CommittedBatch> WRITTEN = new ConcurrentHashMap<>();
    /** Files that were warned about. */
    private static final Set<String> WARNED = ConcurrentHashMap.newKeySet();

    /** The note itself. {@code made} is the epoch of the run that recorded the batch. */
    record CommittedBatch(
            String sink, long batch, String digest, long made, long atMs, List<String> queues) {
        static CommittedBatch of(String sink, long batch, List<StagedList> held, long nowMs) {
            List<String> queues = held.stream()
                    .filter(part -> part.rows() > 0)
                    .map(StagedList::queue)
                    .distinct()
                    .limit(MAX_NOTED_QUEUES)
                    .toList();
            return new CommittedBatch(
                    sink, batch, listsDigest(held), held.get(0).made(), nowMs, queues);
        }

        byte[] encode() {
            ObjectNode root = JSON.createObjectNode()
                    .put("v", VERSION)
                    .put("sink", sink)
                    .put("batch", batch)
                    .put("digest", digest)
                    .put("made", made)
                    .put("at", atMs);
            queues.forEach(root.putArray("queues")::add);
            return root.toString().getBytes(StandardCharsets.UTF_8);
        }

        /** Throws IOException for a text that is no note. */
        static CommittedBatch decode(byte[] text) throws IOException {
            JsonNode root = JSON.readTree(text);
            if (root == null || root.path("v").asInt() != VERSION) {
                throw new IOException("no note of version " + VERSION);
            }
            List<String> queues = new ArrayList<>();
            root.path("queues").forEach(queue -> queues.add(queue.asText()));
            for (String name : List.of("batch", "made", "at")) {
                if (!root.path(name).isIntegralNumber()) {
                    throw new IOException("no number " + name);
                }
            }
            return new CommittedBatch(
                    root.path("sink").asText(),
                    root.path("batch").longValue(),
                    root.path("digest").asText(),
                    root.path("made").longValue(),
                    root.path("at").longValue(),
                    queues);
        }
    }

    /**
     * Return the number of a batch that the record of the sink must still have when the next one is
     * recorded; -1 where there is none. Throws BUSMQ_SINK_ROLLED_BACK.
     */
    long check(SinkStore store, boolean failOnDataLoss, long epoch) {
        CommittedBatch noted = read(epoch);
        if (noted == null) {
            return -1;
        }
        SinkStore.SinkState state = store.state(sink, noted.queues());
        String known = knownInstead(noted, state, System.currentTimeMillis());
        if (!known.isEmpty()) {
            BusException rolledBack = rolledBackError(sink, known, noted.batch());
            if (failOnDataLoss) {
                throw rolledBack;
            }
            LOG.warn("{}. The query goes on (failOnDataLoss=false)", rolledBack.getMessage());
            return -1;
        }
        return state.batch() >= noted.batch() ? noted.batch() : -1;
    }

    /**
     * Return the batch that Redis knows instead of the noted one, for people; empty where Redis is
     * not older than the note.
     */
    private static String knownInstead(
            CommittedBatch noted, SinkStore.SinkState state, long nowMs) {
        if (state.voidBelow() > noted.made()) {
            return "";
        }
        if (state.batch() < 0) {
            return nowMs - noted.atMs() >= RECORD_EXPIRES_MS ? "" : "no batch of it";
        }
        if (state.batch() < noted.batch()) {
            return "batch " + state.batch();
        }
        if (state.batch() == noted.batch() && !state.digest().equals(noted.digest())) {
            return "another batch " + state.batch();
        }
        for (int i = 0; i < noted.queues().size(); i++) {
            Matcher progress = PROGRESS.matcher(state.progress().get(i));
            if (!progress.matches()) {
                continue;
            }
            long batch = Long.parseLong(progress.group(1));
            String queue = PyText.repr(noted.queues().get(i));
            if (batch < noted.batch()) {
                return "batch " + batch + " in queue " + queue;
            }
            if (batch == noted.batch() && !progress.group(2).equals("done")) {
                return "a part of batch " + batch + " in queue " + queue;
            }
        }
        return "";
    }

    /** Note a batch that is appended, by Spark's own manager of checkpoint files. */
    void write(long batch, List<StagedList> held) {
        if (checkpoint == null || held.isEmpty()) {
            return;
        }
        CommittedBatch note =
                CommittedBatch.of(sink, batch, held, System.currentTimeMillis());
        CheckpointFileManager.CancellableFSDataOutputStream file = null;
        try {
            file = CheckpointFileManager.create(
                            new Path(checkpoint),
                            SparkSession.active().sessionState().newHadoopConf())
                    .createAtomic(path(), true);
            file.write(note.encode());
            file.close();
            WRITTEN.put(checkpoint, note);
        } catch (Exception error) { // Scala's managers declare none
            if (file != null) {
                file.cancel();
            }
            if (WARNED.add(checkpoint)) {
                LOG.warn(
                        "{} cannot be written, so a Redis of sink {} that is older than the"
                                + " checkpoint may not be noticed: {}",
                        path(),
                        sink,
                        error.toString());
            }
        }
    }

    /** Null where there is no note of this sink. */
    private CommittedBatch read(long epoch) {
        if (checkpoint == null) {
            return null;
        }
        CommittedBatch found = WRITTEN.get(checkpoint);
        if (found == null || epoch == 0 || found.made() != epoch) {
            try {
                found = CommittedBatch.decode(CheckpointOffsetLog.readFile(path()));
            } catch (FileNotFoundException | NoSuchFileException none) {
                return null;
            } catch (IOException error) {
                if (WARNED.add(checkpoint)) {
                    LOG.warn(
                            "{} cannot be read, and is written anew with the next batch: {}",
                            path(),
                            error.toString());
                }
                return null;
            }
        }
        return found.sink().equals(sink) ? found : null;
    }

    private Path path() {
        return new Path(checkpoint, FILE);
    }

    /** A digest of the names of lists, which are unique for ever. */
    static String listsDigest(List<StagedList> held) {
        String names = held.stream().map(StagedList::key).collect(Collectors.joining("\n"));
        return MessageFingerprint.hexDigest("SHA-256", StandardCharsets.UTF_8.encode(names))
                .substring(0, 32);
    }

    static BusException rolledBackError(String sink, String found, long expected) {
        return BusException.of(
                ErrorKind.SINK_ROLLED_BACK, "sink", sink, "found", found, "expected", expected);
    }
}
