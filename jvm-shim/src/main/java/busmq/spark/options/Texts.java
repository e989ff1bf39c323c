package busmq.spark.options;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.regex.Pattern;

/** Texts of lists, names and addresses; nothing is taken off, as in {@code option_parsing.py}. */
public final class Texts {
    /**
     * What separates a comma list: a comma, with the blanks beside it. All else belongs to the
     * items.
     */
    private static final Pattern COMMA = Pattern.compile("[ \\t]*,[ \\t]*");

    private static final Pattern PYTHON_COLLECTION =
            Pattern.compile("[(\\[{]\\s*b?['\"].*['\"],?\\s*[)\\]}]|b'.*'|b\".*\"");
    private static final Pattern CONTROL = Pattern.compile("[\\x00-\\x1f\\x7f]");

    private Texts() {}

    /** The items of a comma list, empty ones among them. */
    public static List<String> splitAtCommas(String text) {
        return List.of(COMMA.split(text, -1));
    }

    /**
     * Says which blank or control character a text has that no name or address has; null: it has
     * none.
     *
     * @param inside whether blanks in the middle count, too
     */
    public static String describeStrayCharacter(String text, boolean inside) {
        if (text.endsWith("\n") || text.endsWith("\r")) {
            return "ends with a line break, as text that was read from a file does; take it off";
        }
        if (!text.isEmpty()
                && (isBlank(text.charAt(0)) || isBlank(text.charAt(text.length() - 1)))) {
            return "begins or ends with a blank; take it off";
        }
        if (CONTROL.matcher(text).find()) {
            return "has a line break or another control character in it";
        }
        if (!isUtf8(text)) {
            return "has half of a surrogate pair in it, which UTF-8 cannot hold";
        }
        if (looksLikePython(text)) {
            return "looks like a list, tuple or bytes of Python that became text; join its items"
                    + " with commas";
        }
        return inside && text.contains(" ") ? "has a blank in it" : null;
    }

    /** Whether UTF-8 can hold a text: half of a surrogate pair is no character. */
    static boolean isUtf8(String text) {
        return StandardCharsets.UTF_8.newEncoder().canEncode(text);
    }

    static boolean looksLikePython(String text) {
        return PYTHON_COLLECTION.matcher(text).matches();
    }

    private static boolean isBlank(char each) {
        return each == ' ' || each == '\t';
    }
}
