package busmq.spark.options;

import busmq.spark.SharedPythonConstants;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;
import java.util.stream.Stream;

/** Texts to values, as {@code option_parsing.py} parses them. */
final class Parsers {
    private static final Pattern DURATION =
            Pattern.compile("[ \\t]*([0-9]+)[ \\t]*([smhd]?)[ \\t]*");
    private static final Map<String, Long> SECONDS_PER_UNIT =
            SharedPythonConstants.units("seconds");
    private static final Pattern SIZE =
            Pattern.compile("[ \\t]*([0-9]{1,15})[ \\t]*([kmg]?)b?[ \\t]*");
    private static final Map<String, Long> BYTES_PER_UNIT = SharedPythonConstants.units("bytes");
    /** What PySpark makes of bytes, a collection or an object where an option takes a text. */
    private static final Pattern PYTHON_VALUE =
            Pattern.compile(SharedPythonConstants.text("pythonValue"), Pattern.DOTALL);

    private static final Pattern PYTHON_TUPLE =
            Pattern.compile(SharedPythonConstants.text("pythonTuple"), Pattern.DOTALL);
    private static final String PYTHON_VALUE_PROBLEM =
            SharedPythonConstants.text("pythonValueProblem");
    private static final ObjectMapper JSON =
            new ObjectMapper().enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS);

    private Parsers() {}

    /** Return the parser that the contract names for an option. */
    static Function<String, ?> of(SharedPythonConstants.Option option) {
        return switch (option.parser()) {
            case "duration_s" -> Parsers::duration;
            case "ending" -> OffsetsOption::parseEnding;
            case "flag" -> Parsers::flag;
            case "integer" -> whole(option.least(), option.most());
            case "names" -> Parsers::names;
            case "one_name" -> Parsers::name;
            case "one_of" -> oneOf(option.words());
            case "pattern" -> Parsers::pattern;
            case "redis_url" -> Parsers::redisUrl;
            case "secret_text" -> Parsers::secretText;
            case "size" -> Parsers::size;
            case "starting" -> OffsetsOption::parse;
            case "subscription" -> Parsers::subscription;
            case "timestamp" -> OffsetBound::timestamp;
            default -> throw new IllegalStateException(
                    "contract.json names a parser that Java lacks: " + option.parser());
        };
    }

    /** The text as it is; refused with a character that files and shells leave at its ends. */
    private static String secretText(String text) {
        String stray = text.isEmpty() ? "" : strayEnd(text);
        if (!stray.isEmpty()) {
            throw new IllegalArgumentException("no " + stray
                    + ": nothing is taken away in silence. A Redis password that has it"
                    + " goes percent-encoded into redis.url");
        }
        return text;
    }

    private static String strayEnd(String text) {
        int first = text.codePointAt(0);
        int last = text.codePointBefore(text.length());
        if (!strayName(first).isEmpty()) {
            return strayName(first) + " at its beginning";
        }
        if (!strayName(last).isEmpty()) {
            return strayName(last) + " at its end";
        }
        return text.length() > 1 && first == last && "\"'`".indexOf(first) >= 0
                ? "quotes around it"
                : "";
    }

    private static String strayName(int point) {
        if (point == '\n' || point == '\r') {
            return "line break";
        }
        if (point == 0xFEFF) {
            return "byte-order mark";
        }
        return Character.isSpaceChar(point)
                ? "blank"
                : Character.isISOControl(point) ? "control character" : "";
    }

    private static Function<String, Long> whole(long least, Long most) {
        String wanted = most == null
                ? "a whole number of at least " + least
                : "a whole number from " + least + " to " + most;
        return text -> {
            String digits = withoutBlanks(text);
            if (!digits.matches("[0-9]{1,18}")
                    || Long.parseLong(digits) < least
                    || most != null && Long.parseLong(digits) > most) {
                throw new IllegalArgumentException(wanted);
            }
            return Long.parseLong(digits);
        };
    }

    private static boolean flag(String text) {
        String word = withoutBlanks(text).toLowerCase(Locale.ROOT);
        if (!word.equals("true") && !word.equals("false")) {
            throw new IllegalArgumentException("true or false");
        }
        return word.equals("true");
    }

    private static Function<String, String> oneOf(List<String> words) {
        return text -> words.stream()
                .filter(word -> word.equalsIgnoreCase(withoutBlanks(text)))
                .findFirst()
                .orElseThrow(
                        () -> new IllegalArgumentException("one of " + String.join(", ", words)));
    }

    /** Seconds. */
    private static long duration(String text) {
        Matcher found = DURATION.matcher(text.toLowerCase(Locale.ROOT));
        if (!found.matches()
                || found.group(1).length() > 12
                || Long.parseLong(found.group(1)) < 1) {
            throw new IllegalArgumentException(
                    "seconds, or a number with s, m, h or d: 30s, 12h, 7d");
        }
        return Long.parseLong(found.group(1)) * SECONDS_PER_UNIT.get(found.group(2));
    }

    /** Bytes; k, m and g are powers of 1024. */
    private static long size(String text) {
        Matcher found = SIZE.matcher(text.toLowerCase(Locale.ROOT));
        if (!found.matches() || Long.parseLong(found.group(1)) < 1) {
            throw new IllegalArgumentException("bytes, or a number with k, m or g: 64k, 10m, 1g");
        }
        return Math.multiplyExact(
                Long.parseLong(found.group(1)), BYTES_PER_UNIT.get(found.group(2)));
    }

    /** A comma list, or a JSON list, where a name may hold commas and spaces. */
    private static List<String> names(String text) {
        String wanted =
                "queue names with commas between them, such as orders,audit, or a JSON list, such"
                        + " as [\"orders\", \"a,b\"]";
        if (withoutBlanks(text).startsWith("[")) {
            List<String> found = jsonNames(text).distinct().toList();
            if (found.isEmpty()) {
                throw new IllegalArgumentException(wanted);
            }
            return found;
        }
        if (Texts.looksLikePython(text)) {
            throw new IllegalArgumentException(
                    wanted + "; this " + Texts.describeStrayCharacter(text, false));
        }
        List<String> found = Texts.splitAtCommas(text);
        if (PYTHON_VALUE.matcher(text).matches()) {
            throw new IllegalArgumentException(wanted + "; " + PYTHON_VALUE_PROBLEM);
        }
        for (String name : found) {
            String problem =
                    name.isEmpty() ? "is empty" : Texts.describeStrayCharacter(name, false);
            if (problem != null) {
                throw new IllegalArgumentException(wanted + "; one of the names " + problem);
            }
        }
        return found.stream().distinct().toList();
    }

    private static Stream<String> jsonNames(String text) {
        try {
            List<String> found = new ArrayList<>();
            for (JsonNode each : JSON.readTree(text)) {
                if (!each.isTextual()
                        || each.textValue().isEmpty()
                        || !Texts.isUtf8(each.textValue())) {
                    return Stream.empty();
                }
                found.add(each.textValue());
            }
            return found.stream();
        } catch (JsonProcessingException error) {
            return Stream.empty();
        }
    }

    /** Names that begin with a colon are fields of our own beside the subscriptions. */
    private static String subscription(String text) {
        if (name(text).startsWith(":")) {
            throw new IllegalArgumentException("a name that does not begin with a colon");
        }
        return text;
    }

    private static String name(String text) {
        if (withoutBlanks(text).isEmpty()) {
            throw new IllegalArgumentException("a name");
        }
        String stray = Texts.describeStrayCharacter(text, false);
        if (stray != null) {
            throw new IllegalArgumentException("a name, and this one " + stray);
        }
        if (PYTHON_VALUE.matcher(text).matches()) {
            throw new IllegalArgumentException("a name; " + PYTHON_VALUE_PROBLEM);
        }
        return text;
    }

    /** Any text but an empty one: {@code Urls} reads it. */
    private static String redisUrl(String text) {
        if (withoutBlanks(text).isEmpty()) {
            throw new IllegalArgumentException(
                    "redis://host:port, or several separated by commas; leave it out for"
                            + " BUSMQ_REDIS_URL");
        }
        return text;
    }

    /**
     * Blanks around numbers and words of a fixed list mean nothing; all else keeps them, or is
     * refused.
     */
    private static String withoutBlanks(String text) {
        return text.replaceAll("^[ \\t]+|[ \\t]+$", "");
    }

    private static String pattern(String text) {
        if (text.isEmpty()) {
            throw new IllegalArgumentException("a regular expression, and this one is empty");
        }
        if (PYTHON_TUPLE.matcher(text).matches()) {
            throw new IllegalArgumentException("a regular expression; " + PYTHON_VALUE_PROBLEM);
        }
        try {
            Pattern.compile(text);
        } catch (PatternSyntaxException error) {
            throw new IllegalArgumentException(
                    "a Java regular expression (" + error.getDescription() + ")");
        }
        return text;
    }
}
