package busmq.spark.redis;

import busmq.spark.BusException;
import java.util.List;

/**
 * A link for one call at a time: a call of another thread meanwhile is an error, and the pool does
 * not take a link back that is in a call.
 */
abstract class SingleCallerLink implements RedisLink {
    private boolean callUnderWay;
    private boolean retired;

    @Override
    public final List<Object> tryAll(List<RedisCall> calls) {
        if (calls.isEmpty()) {
            return List.of();
        }
        beginCall();
        try {
            return execute(calls);
        } catch (BusException known) {
            throw known;
        } catch (RuntimeException | Error unforeseen) {
            // In the middle of a reply, perhaps: the next call would be given what is left of it.
            close();
            throw unforeseen;
        } finally {
            endCall();
        }
    }

    /** Do the work of {@link #tryAll}, for at least one call. */
    abstract List<Object> execute(List<RedisCall> calls);

    private synchronized void beginCall() {
        if (callUnderWay) {
            // Only a defect of this module leads here.
            throw new IllegalStateException("two threads use one link; replies would be mixed up");
        }
        callUnderWay = true;
    }

    private synchronized void endCall() {
        callUnderWay = false;
        if (retired) {
            close();
        }
    }

    /**
     * True when another thread has a call under way: then the link closes itself after that call,
     * and must not be used again.
     */
    final synchronized boolean retireIfBusy() {
        retired |= callUnderWay;
        return retired;
    }
}
