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

    /**
     * The note itself. {@code made} is the epoch of the run that recorded the batch, {@code before}
     * the batch that Redis had on record before it, or -1.
     */
    record CommittedBatch(
            String sink,
            long batch,
            long before,
            String digest,
            long made,
            long atMs,
            List<String> queues) {
        static CommittedBatch of(
                String sink, long batch, List<StagedList> held, BatchCheck check) {
            List<String> queues = held.stream()
                    .filter(part -> part.rows() > 0)
                    .map(StagedList::queue)
                    .distinct()
                    .limit(MAX_NOTED_QUEUES)
                    .toList();
            return new CommittedBatch(
                    sink,
                    batch,
                    check.before(),
                    listsDigest(held),
                    held.get(0).made(),
                    check.atMs(),
                    queues);
        }

        byte[] encode() {
            ObjectNode root = JSON.createObjectNode()
                    .put("v", VERSION)
                    .put("sink", sink)
                    .put("batch", batch)
                    .put("before", before)
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
            for (String name : List.of("batch", "before", "made", "at")) {
                if (!root.path(name).isIntegralNumber()) {
                    throw new IOException("no number " + name);
                }
            }
            return new CommittedBatch(
                    root.path("sink").asText(),
                    root.path("batch").longValue(),
                    root.path("before").longValue(),
                    root.path("digest").asText(),
                    root.path("made").longValue(),
                    root.path("at").longValue(),
                    queues);
        }

        CommittedBatch withoutQueues() {
            return new CommittedBatch(sink, batch, before, digest, made, atMs, List.of());
        }

        /**
         * Return the batch that Redis must have on record before this one is; -1 where it may have
         * none.
         */
        long expectedBefore(long next) {
            if (batch < next) {
                return batch;
            }
            return before < next ? before : -1;
        }

        boolean isAppended(SinkStore.SinkState state) {
            String done = batch + ":done;" + made + ";";
            return !queues.isEmpty()
                    && queues.size() < MAX_NOTED_QUEUES
                    && state.progress().stream().allMatch(each -> each.startsWith(done));
        }
    }

    /**
     * The result of the check before a batch is recorded.
     *
     * @param atMs the time of the check
     * @param least a batch that the record of the sink must still have when this one is recorded
     * @param before the batch that Redis had on record before this one; -1: none, or not known
     * @param lossAccepted Redis is older than the note, and the query goes on
     */
    record BatchCheck(long atMs, long least, long before, boolean lossAccepted) {}

    /**
     * Compare Redis with the note before this batch is recorded. Throws BUSMQ_SINK_ROLLED_BACK.
     */
    BatchCheck check(SinkStore store, boolean failOnDataLoss, long epoch, long batch) {
        CommittedBatch noted = read(epoch);
        long nowMs = System.currentTimeMillis();
        if (noted == null) {
            return new BatchCheck(nowMs, -1, -1, false);
        }
        SinkStore.SinkState state;
        try {
            state = store.state(sink, noted.queues());
        } catch (BusException error) {
            if (error.kind() != ErrorKind.UNAUTHORIZED) {
                throw error;
            }
            noted = noted.withoutQueues();
            state = store.state(sink, List.of());
            if (WARNED.add("rights of " + sink)) {
                LOG.warn(
                        "sink {} may not ask for its progress in the queues of its last batch, so a"
                                + " queue that is older than the checkpoint is not noticed: {}",
                        sink,
                        error.getMessage());
            }
        }
        long expected = noted.expectedBefore(batch);
        String known = knownInstead(noted, state, nowMs, expected);
        if (!known.isEmpty()) {
            BusException rolledBack = rolledBackError(sink, known, expected);
            if (failOnDataLoss) {
                throw rolledBack;
            }
            LOG.warn("{}. The query goes on (failOnDataLoss=false)", rolledBack.getMessage());
        }
        return new BatchCheck(
                nowMs,
                failOnDataLoss && state.batch() >= expected ? expected : -1,
                state.batch() < batch ? state.batch() : expected,
                !known.isEmpty());
    }

    /**
     * Return the batch that Redis knows instead of the expected one, for people; empty where Redis
     * is not too old.
     */
    private static String knownInstead(
            CommittedBatch noted, SinkStore.SinkState state, long nowMs, long expected) {
        if (state.voidBelow() > noted.made() || expected < 0) {
            return "";
        }
        if (expected == noted.batch()
                && state.batch() == noted.before()
                && noted.isAppended(state)) {
            return "";
        }
        if (state.batch() < 0) {
            return nowMs - noted.atMs() >= RECORD_EXPIRES_MS ? "" : "no batch of it";
        }
        if (state.batch() < expected) {
            return "batch " + state.batch();
        }
        if (expected < noted.batch()) {
            return "";
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

    /**
     * Note a batch that is appended, by Spark's own manager of checkpoint files. Without rows the
     * note stays, but for one whose loss was accepted: that is removed.
     */
    void write(long batch, List<StagedList> held, BatchCheck check) {
        if (checkpoint == null) {
            return;
        }
        if (held.isEmpty()) {
            if (check.lossAccepted()) {
                remove();
            }
            return;
        }
        CommittedBatch note = CommittedBatch.of(sink, batch, held, check);
        CheckpointFileManager.CancellableFSDataOutputStream file = null;
        try {
            file = files().createAtomic(path(), true);
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

    private void remove() {
        WRITTEN.remove(checkpoint);
        try {
            files().delete(path());
        } catch (Exception error) { // Scala's managers declare none
            LOG.warn("{} cannot be removed: {}", path(), error.toString());
        }
    }

    private CheckpointFileManager files() {
        return CheckpointFileManager.create(
                new Path(checkpoint), SparkSession.active().sessionState().newHadoopConf());
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
