package busmq.spark.source;

import busmq.spark.options.ReadOptions;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.TaskCompletionListener;

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
        return new RangePartitionReader(options, new RowMaker(schema), (RangePartition) partition);
    }
}
