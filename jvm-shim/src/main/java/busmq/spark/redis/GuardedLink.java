package busmq.spark.redis;

import busmq.spark.BusException;
import java.util.List;

/** A link that knows whether a call is under way: another thread's meanwhile is an error, and the pool does not take the link back. */
abstract class GuardedLink implements Link {
    private boolean busy;
    private boolean retired;

    @Override
    public final List<Object> tryAll(List<Call> calls) {
        if (calls.isEmpty()) {
            return List.of();
        }
        enter();
        try {
            return step(calls);
        } catch (BusException known) {
            throw known;
        } catch (RuntimeException | Error unforeseen) {
            close(); // in the middle of a reply, perhaps: the next call would be given what is left of it
            throw unforeseen;
        } finally {
            leave();
        }
    }

    /** What {@link #tryAll} does, for at least one call. */
    abstract List<Object> step(List<Call> calls);

    private synchronized void enter() {
        if (busy) {
            throw new IllegalStateException("two threads use one link; replies would be mixed up"); // a defect of this module
        }
        busy = true;
    }

    private synchronized void leave() {
        busy = false;
        if (retired) {
            close();
        }
    }

    /** False when another thread has a call under way: then the link closes itself after that call, and must not be used again. */
    final synchronized boolean idle() {
        retired |= busy;
        return !retired;
    }
}
