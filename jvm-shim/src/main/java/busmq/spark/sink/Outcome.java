package busmq.spark.sink;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** What a task did: the lists it staged. */
record Outcome(List<Staged> staged) implements WriterCommitMessage {
    /** All staged lists, in partition order: Spark aligns the messages with the partitions. */
    static List<Staged> all(WriterCommitMessage[] messages) {
        List<Staged> out = new ArrayList<>();
        for (WriterCommitMessage message : messages) {
            if (message instanceof Outcome outcome) {
                out.addAll(outcome.staged);
            }
        }
        return out;
    }
}
