package busmq.spark.sink;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** What a task did: the lists it staged, and their run. */
record TaskOutcome(List<StagedList> staged, SinkRunEpoch epoch) implements WriterCommitMessage {
    static final TaskOutcome EMPTY = new TaskOutcome(List.of(), SinkRunEpoch.NONE);

    /** Of the run whose lists these are. */
    static SinkRunEpoch epochOf(WriterCommitMessage[] messages) {
        SinkRunEpoch found = SinkRunEpoch.NONE;
        for (WriterCommitMessage message : messages) {
            if (message instanceof TaskOutcome outcome && outcome.epoch.number() != 0 && found.before().isEmpty()) {
                found = outcome.epoch;
            }
        }
        return found;
    }

    /** All staged lists, in partition order: Spark aligns the messages with the partitions. */
    static List<StagedList> stagedLists(WriterCommitMessage[] messages) {
        List<StagedList> out = new ArrayList<>();
        for (WriterCommitMessage message : messages) {
            if (message instanceof TaskOutcome outcome) {
                out.addAll(outcome.staged);
            }
        }
        return out;
    }
}
