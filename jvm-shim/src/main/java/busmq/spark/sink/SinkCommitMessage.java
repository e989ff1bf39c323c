package busmq.spark.sink;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** The result of a task: the lists that it staged, and their run. */
record SinkCommitMessage(List<StagedList> staged, SinkRun run) implements WriterCommitMessage {
    static final SinkCommitMessage EMPTY = new SinkCommitMessage(List.of(), SinkRun.NONE);

    /** Of the run whose lists these are. */
    static SinkRun runOf(WriterCommitMessage[] messages) {
        SinkRun found = SinkRun.NONE;
        for (WriterCommitMessage message : messages) {
            if (message instanceof SinkCommitMessage outcome
                    && outcome.run.epoch() != 0
                    && found.before().isEmpty()) {
                found = outcome.run;
            }
        }
        return found;
    }

    /** All staged lists, in partition order: Spark aligns the messages with the partitions. */
    static List<StagedList> stagedLists(WriterCommitMessage[] messages) {
        List<StagedList> out = new ArrayList<>();
        for (WriterCommitMessage message : messages) {
            if (message instanceof SinkCommitMessage outcome) {
                out.addAll(outcome.staged);
            }
        }
        return out;
    }
}
