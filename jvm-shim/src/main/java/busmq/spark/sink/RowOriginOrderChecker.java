package busmq.spark.sink;

import busmq.spark.PyText;
import busmq.spark.source.TaskSourceQueueRegistry;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The origins of the rows of one task, each after the one before of its queue: else what came later
 * would count as appended already. A queue that no reader of this task follows has rows in other
 * tasks, too, and they come in any order.
 */
final class RowOriginOrderChecker {
    private final RowOriginColumns columns;
    private final Map<String, RowOrigin> lastOrigins = new HashMap<>();
    private UTF8String lastName;
    private String queue;

    RowOriginOrderChecker(RowOriginColumns columns) {
        this.columns = columns;
    }

    /** Throws BUSMQ_CONFIG, which names what the pipeline does with its rows. */
    RowOrigin checkedOrigin(InternalRow row) {
        if (row.isNullAt(columns.queueAt())) {
            throw RowOriginColumns.nullError("queue");
        }
        if (row.isNullAt(columns.idAt())) {
            throw RowOriginColumns.nullError("id");
        }
        UTF8String name = row.getUTF8String(columns.queueAt());
        if (!name.equals(lastName)) {
            lastName = name.copy();
            queue = name.toString();
        }
        RowOrigin before = lastOrigins.get(queue);
        String born = before == null ? bornOfFollowedQueue() : before.born();
        int index = columns.indexAt() < 0 || row.isNullAt(columns.indexAt())
                ? 0
                : row.getInt(columns.indexAt());
        RowOrigin found = new RowOrigin(born, row.getLong(columns.idAt()), index);
        if (before != null && !found.isAfter(before)) {
            throw wrongOrderError(found, before);
        }
        lastOrigins.put(queue, found);
        return found;
    }

    private String bornOfFollowedQueue() {
        TaskContext task = TaskContext.get();
        TaskSourceQueueRegistry.FollowedQueue followed =
                task == null ? null : TaskSourceQueueRegistry.find(task, queue);
        if (followed == null) {
            throw RealTimeMode.notExactlyOnceError("rows of queue " + PyText.repr(queue)
                    + " in a task that does not read it, so that their order is lost:"
                    + " leave out what moves rows between tasks (repartition,"
                    + " aggregations, joins), and keep column queue as it is");
        }
        if (followed.shared()) {
            throw RealTimeMode.notExactlyOnceError("a query that reads queue " + PyText.repr(queue)
                    + " twice: read it once, and let each message make the "
                    + "rows of both, numbered in column index");
        }
        if (!followed.strict()) {
            throw RealTimeMode.notExactlyOnceError(
                    "failOnDataLoss=false at the source, where ids that a server gave again would"
                            + " count as appended: leave it out");
        }
        return followed.born();
    }

    private RuntimeException wrongOrderError(RowOrigin found, RowOrigin before) {
        if (found.id() == before.id()) {
            return RealTimeMode.notExactlyOnceError(
                    "several rows of one message (id " + found.id() + " of queue "
                            + PyText.repr(queue)
                            + ") that column index does not number upwards: make it with"
                            + " posexplode, or leave all but one out");
        }
        return RealTimeMode.notExactlyOnceError("rows in another order than their queue: id "
                + found.id() + " of " + PyText.repr(queue)
                + " came after "
                + before.id() + ". Leave out what sorts or mixes them");
    }
}
