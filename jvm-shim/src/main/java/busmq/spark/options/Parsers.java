package busmq.spark.options;

import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;

/** Texts to values, as {@code options.py} parses them. */
final class Parsers {
    private static final Pattern DURATION = Pattern.compile("\\s*(\\d+)\\s*([smhd]?)\\s*");
    private static final Map<String, Long> UNITS = Map.of("", 1L, "s", 1L, "m", 60L, "h", 3600L, "d", 86400L);

    private Parsers() {
    }

    static Function<String, Long> whole(long least) {
        return text -> {
            String digits = text.strip();
            if (!digits.matches("\\d{1,18}") || Long.parseLong(digits) < least) {
                throw new IllegalArgumentException("a whole number of at least " + least);
            }
            return Long.parseLong(digits);
        };
    }

    static boolean flag(String text) {
        String word = text.strip().toLowerCase(Locale.ROOT);
        if (!word.equals("true") && !word.equals("false")) {
            throw new IllegalArgumentException("true or false");
        }
        return word.equals("true");
    }

    static Function<String, String> oneOf(String... words) {
        return text -> Arrays.stream(words).filter(word -> word.equalsIgnoreCase(text.strip())).findFirst()
                .orElseThrow(() -> new IllegalArgumentException("one of " + String.join(", ", words)));
    }

    /** Seconds. */
    static long duration(String text) {
        Matcher found = DURATION.matcher(text.toLowerCase(Locale.ROOT));
        if (!found.matches() || found.group(1).length() > 12 || Long.parseLong(found.group(1)) < 1) {
            throw new IllegalArgumentException("seconds, or a number with s, m, h or d: 30s, 12h, 7d");
        }
        return Long.parseLong(found.group(1)) * UNITS.get(found.group(2));
    }

    static List<String> names(String text) {
        List<String> found = Arrays.stream(text.split(",")).map(String::strip).filter(name -> !name.isEmpty()).distinct().toList();
        if (found.isEmpty()) {
            throw new IllegalArgumentException("a comma list of queue names, such as orders,audit");
        }
        return found;
    }

    static String name(String text) {
        if (text.isBlank()) {
            throw new IllegalArgumentException("a name");
        }
        return text.strip();
    }

    static String pattern(String text) {
        try {
            Pattern.compile(text);
        } catch (PatternSyntaxException error) {
            throw new IllegalArgumentException("a Java regular expression (" + error.getDescription() + ")");
        }
        return text;
    }
}
