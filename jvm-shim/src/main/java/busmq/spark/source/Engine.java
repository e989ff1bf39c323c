package busmq.spark.source;

/** What the engine does not tell a source. */
final class Engine {
    private Engine() {}

    /** Whether the engine that calls us writes its logs asynchronously: then what it calls the start of a batch may not be durable yet. */
    static boolean logsLater() {
        return StackWalker.getInstance().walk(frames -> frames.anyMatch(frame -> frame.getClassName().contains("AsyncProgressTracking")));
    }
}
