package busmq.spark.source;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.TaskContext;
import org.apache.spark.util.TaskCompletionListener;

/**
 * The queues that the readers of running tasks follow in real-time mode, for a sink in the same
 * task.
 */
public final class TaskSourceQueueRegistry {
    private static final Map<Long, Map<String, FollowedQueue>> BY_TASK = new ConcurrentHashMap<>();

    /**
     * A queue in a task.
     *
     * @param born its life
     * @param shared whether another source of the query reads it, too
     * @param strict whether the query ends where ids were given again
     */
    public record FollowedQueue(String born, boolean shared, boolean strict) {}

    private TaskSourceQueueRegistry() {}

    /** A reader of this task follows the queue, until the task ends. */
    static void add(TaskContext task, String queue, FollowedQueue followed) {
        Map<String, FollowedQueue> fresh = new ConcurrentHashMap<>();
        Map<String, FollowedQueue> before = BY_TASK.putIfAbsent(task.taskAttemptId(), fresh);
        (before == null ? fresh : before)
                .merge(
                        queue,
                        followed,
                        (one, two) -> new FollowedQueue(one.born(), true, one.strict()));
        if (before == null) {
            TaskCompletionListener end = ended -> BY_TASK.remove(ended.taskAttemptId());
            task.addTaskCompletionListener(end);
        }
    }

    /** Null where no reader of the task follows the queue. */
    public static FollowedQueue find(TaskContext task, String queue) {
        return BY_TASK.getOrDefault(task.taskAttemptId(), Map.of()).get(queue);
    }
}
