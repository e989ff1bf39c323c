package busmq.spark.redis;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import busmq.spark.core.Script;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * A command, or a Lua script, for the server that owns its keys.
 *
 * @param words the command with its arguments; for a script KEYS and then ARGV
 * @param script null for a plain command
 * @param optional whether the caller goes on without it where Redis pauses writes: then it is
 *     not waited for
 * @param idempotent whether it may be sent again when the connection broke and it is unknown
 *     whether Redis has executed it
 */
public record RedisCall(
        List<byte[]> words, Script script, int keyCount, boolean idempotent, boolean optional) {
    /** A call that is waited for. */
    public RedisCall(List<byte[]> words, Script script, int keyCount, boolean idempotent) {
        this(words, script, keyCount, idempotent, false);
    }

    /**
     * A plain command that may be repeated. Words are {@code byte[]}, or anything whose text is
     * meant.
     */
    public static RedisCall command(Object... words) {
        return new RedisCall(toBytes(List.of(words)), null, 0, true);
    }

    /** A script that may be repeated. */
    public static RedisCall script(String name, List<String> keys, Object... args) {
        List<Object> words = new ArrayList<>(keys);
        words.addAll(List.of(args));
        return new RedisCall(toBytes(words), Script.load(name), keys.size(), true);
    }

    /** Return the call in a form that is repeated only when Redis has certainly not seen it. */
    public RedisCall asNonIdempotent() {
        return new RedisCall(words, script, keyCount, false, optional);
    }

    /** The same call, for a caller that goes on without it. */
    public RedisCall asOptional() {
        return new RedisCall(words, script, keyCount, idempotent, true);
    }

    /** Whether the call goes again after Redis refused it with this error. */
    boolean waitsFor(BusException refused) {
        return refused.kind().isLinkLost()
                && !(optional && refused.kind() == ErrorKind.WRITES_PAUSED);
    }

    private static List<byte[]> toBytes(List<?> words) {
        List<byte[]> out = new ArrayList<>(words.size());
        for (Object word : words) {
            out.add(
                    word instanceof byte[] raw
                            ? raw
                            : word.toString().getBytes(StandardCharsets.UTF_8));
        }
        return out;
    }
}
