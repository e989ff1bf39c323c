package busmq.spark;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.SparkThrowable;

/**
 * Every error this module raises on purpose. The message is
 * {@code [CODE] found; expected; what to do}, word for word as in Python, and holds no secret.
 *
 * <p>PySpark prints errors of a few classes as one line, and IllegalArgumentException is the only
 * fitting one of them that may be extended; any other is a Py4JJavaError with a Java stack. With a
 * condition of its own it comes out of a task as it is, not within "Job aborted".
 */
public final class BusException extends IllegalArgumentException implements SparkThrowable {
    private static final Pattern FIELD = Pattern.compile("\\{(\\w+)(!r)?\\}");

    private final ErrorKind kind;
    private final LinkedHashMap<String, String> details;

    private BusException(ErrorKind kind, LinkedHashMap<String, String> details, Throwable cause) {
        super("[" + kind.code() + "] " + fillTemplate(kind.template(), details), cause);
        this.kind = kind;
        this.details = details;
    }

    /**
     * An error of this kind; {@code details} are names and values in turn, as the kind's template
     * needs them.
     */
    public static BusException of(ErrorKind kind, Object... details) {
        return withCause(null, kind, details);
    }

    /** An error with its cause. The text of the cause is printed, too: it must hold no secret. */
    public static BusException withCause(Throwable cause, ErrorKind kind, Object... details) {
        LinkedHashMap<String, String> named = new LinkedHashMap<>();
        for (int i = 0; i < details.length; i += 2) {
            named.put((String) details[i], String.valueOf(details[i + 1]));
        }
        return new BusException(kind, named, cause);
    }

    /** A bad option or argument. */
    public static BusException configError(String reason) {
        return of(ErrorKind.CONFIG, "reason", reason);
    }

    /** The error code, for programs. */
    public ErrorKind kind() {
        return kind;
    }

    /** The code, for programs of any language; never changes once released. */
    @Override
    public String getCondition() {
        return kind.code();
    }

    /** The details of the error, by name. */
    @Override
    public Map<String, String> getMessageParameters() {
        return details;
    }

    /** Whether the same call may succeed later. */
    public boolean retriable() {
        return kind.retriable();
    }

    private static String fillTemplate(String template, Map<String, String> details) {
        Matcher field = FIELD.matcher(template);
        StringBuilder out = new StringBuilder();
        while (field.find()) {
            String value = details.get(field.group(1));
            if (value == null) {
                throw new IllegalArgumentException("no detail " + field.group(1));
            }
            field.appendReplacement(
                    out,
                    Matcher.quoteReplacement(field.group(2) == null ? value : PyText.repr(value)));
        }
        return field.appendTail(out).toString();
    }
}
