package busmq.spark.redis;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.ErrorKind;
import java.net.SocketTimeoutException;
import java.net.UnknownHostException;
import java.util.Arrays;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.SSLException;
import redis.clients.jedis.exceptions.JedisDataException;

/**
 * Translates Jedis' errors and Redis' error replies into ours, by one table. The address is masked,
 * and no argument of a command is repeated.
 */
final class ErrorTranslator {
    /** By the code of a reply, and by its words where it has none: Python's tables. */
    private static final Map<String, ErrorKind> KINDS =
            SharedPythonConstants.errorKinds("replyCodes");

    private static final Map<String, ErrorKind> KINDS_OF_SENTENCES =
            SharedPythonConstants.errorKinds("replySentences");
    /** At the start, or where Redis before 7 quotes what a command inside a script said. */
    private static final Pattern CODE =
            Pattern.compile("(?:^|-)(" + String.join("|", KINDS.keySet()) + ")\\b");

    /** The metadata key, in whichever layout, of a queue to which push.lua appends nothing. */
    private static final Pattern MIRROR_KEY =
            Pattern.compile("BUSMQ_QUEUE_IS_MIRROR (?:\\{bus:queue:(.*)}|bus:queue:(.*)):metadata");

    private static final String WRONG_LOGIN_TEXT = SharedPythonConstants.text("wrongLoginText");

    /** Texts of Java errors for a connection that the other side closed, with or without TLS. */
    private static final Pattern CONNECTION_ENDED = Pattern.compile(
            "(?i)broken pipe|connection reset|closed|terminated|unexpected end of stream");

    private ErrorTranslator() {}

    /** A BusException is returned unchanged. */
    static BusException translate(RuntimeException error, RedisEndpoint endpoint) {
        if (error instanceof BusException ours) {
            return ours;
        }
        if (error instanceof NoServerReachable) {
            return BusException.of(
                    ErrorKind.LINK_LOST,
                    "url",
                    endpoint.maskedAddress(),
                    "reason",
                    maskSecrets(error.getMessage(), endpoint));
        }
        return error instanceof JedisDataException
                ? translateErrorReply(error, endpoint)
                : translateConnectionError(error, endpoint);
    }

    private static BusException translateErrorReply(
            RuntimeException error, RedisEndpoint endpoint) {
        String text = maskSecrets(error.getMessage(), endpoint);
        if (text.contains("BUSMQ_MAX_ID")) {
            return BusException.of(
                    ErrorKind.MESSAGE_REFUSED,
                    "reason",
                    "the queue has used up its ids (2^53-1, the last that JavaScript can count)."
                            + " Drain it and create it anew");
        }
        Matcher mirror = MIRROR_KEY.matcher(error.getMessage());
        if (mirror.find()) {
            return BusException.of(
                    ErrorKind.QUEUE_IS_MIRROR,
                    "queue",
                    mirror.group(1) != null ? mirror.group(1) : mirror.group(2));
        }
        Matcher code = CODE.matcher(text);
        ErrorKind kind = code.find() ? KINDS.get(code.group(1)) : kindBySentence(text);
        if (endpoint.mayMove()
                && (kind == ErrorKind.READ_ONLY || text.startsWith("UNBLOCKED"))) {
            // It is a replica now: nothing was written, and the new master can execute the call.
            kind = ErrorKind.LINK_LOST;
        }
        return BusException.of(kind, "url", endpoint.maskedAddress(), "reason", text);
    }

    /**
     * Redis drops the code of some errors, inside scripts before 7 and in Valkey 9, and keeps the
     * sentence.
     */
    private static ErrorKind kindBySentence(String text) {
        return KINDS_OF_SENTENCES.entrySet().stream()
                .filter(entry -> text.contains(entry.getKey()))
                .map(Map.Entry::getValue)
                .findFirst()
                .orElse(ErrorKind.SERVER_REFUSED);
    }

    private static BusException translateConnectionError(
            RuntimeException error, RedisEndpoint endpoint) {
        Throwable root = error;
        SSLException tls = null;
        while (root.getCause() != null) {
            root = root.getCause();
            tls = root instanceof SSLException found ? found : tls;
        }
        String text = maskSecrets(describeCause(root), endpoint);
        boolean gone = CONNECTION_ENDED.matcher(text).find();
        if (tls != null && !gone) {
            return BusException.of(
                    ErrorKind.TLS, "url", endpoint.maskedAddress(), "reason", text);
        }
        if (endpoint.maskedAddress().contains("rediss://")
                && (gone || root instanceof SocketTimeoutException)) {
            // The TLS alert of the server may be lost with the connection, and a server without TLS
            // sends nothing and waits.
            text += root instanceof SocketTimeoutException
                    ? " (so does a port that speaks no TLS)"
                    : " (a server that asks for a redis.tls.certificate may end like this)";
        }
        return BusException.of(
                ErrorKind.LINK_LOST, "url", endpoint.maskedAddress(), "reason", text);
    }

    private static String describeCause(Throwable root) {
        String text =
                root.getMessage() == null ? root.getClass().getSimpleName() : root.getMessage();
        if (root instanceof UnknownHostException) {
            return "no address is known for host " + text;
        }
        return root instanceof SocketTimeoutException && text.startsWith("Read")
                ? "no reply in time"
                : text;
    }

    private static String maskSecrets(String message, RedisEndpoint endpoint) {
        String text =
                message.strip().replaceAll("\\s+", " ").split(", with args beginning with", 2)[0];
        // Redis' own words may look like a user or a password.
        String[] parts = text.split(Pattern.quote(WRONG_LOGIN_TEXT), -1);
        for (String secret : endpoint.secrets()) {
            if (secret.length() > 3) {
                Arrays.setAll(parts, i -> parts[i].replace(secret, "***"));
            }
        }
        text = String.join(WRONG_LOGIN_TEXT, parts);
        // Our sentence goes on.
        return text.endsWith(".") ? text.substring(0, text.length() - 1) : text;
    }
}
