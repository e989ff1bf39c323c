package busmq.spark.source;

import busmq.spark.options.ReadOptions;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.TaskCompletionListener;
import org.apache.spark.util.TaskFailureListener;

/** Makes the readers of tasks. It is serialized to the tasks, and its options with it. */
record ReaderFactory(ReadOptions options, StructType schema) implements PartitionReaderFactory {
    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
        if (partition instanceof RealTimePartition live) {
            RealTimeReader reader = new RealTimeReader(options, new RowMaker(schema), live);
            TaskContext task = TaskContext.get();
            if (task != null) { // Spark 4.1 does not close readers of real-time mode
                task.addTaskCompletionListener((TaskCompletionListener) context -> reader.close());
            }
            return reader;
        }
        RangePartitionReader reader =
                new RangePartitionReader(options, new RowMaker(schema), (RangePartition) partition);
        TaskContext task = TaskContext.get();
        if (task != null) {
            task.addTaskFailureListener((TaskFailureListener)
                    (context, error) -> error.addSuppressed(new ReadRanges(reader.describe())));
        }
        return reader;
    }

    /** The ranges of a failed task, beside its error: a row of them may be the cause. */
    private static final class ReadRanges extends RuntimeException {
        private static final long serialVersionUID = 1;

        ReadRanges(String message) {
            super(message, null, false, false);
        }

        @Override
        public String toString() {
            return getMessage();
        }
    }
}
