package busmq.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.net.URL;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;

/**
 * Constants that this module shares with the Python package, from {@code contract.json}, which is
 * generated from the Python sources. A name that is not in it is an error as soon as the class that
 * reads it is loaded.
 */
public final class SharedPythonConstants {
    private static final JsonNode ROOT = load();

    private SharedPythonConstants() {}

    /**
     * The declaration of an option.
     *
     * @param fallback the text of the default; null: none
     * @param parser its name in {@code option_parsing.py}
     * @param least of a whole number, inclusive
     * @param most of a whole number, inclusive; null: no bound
     * @param words that a choice has
     */
    public record Option(
            String alias,
            String fallback,
            String parser,
            long least,
            Long most,
            List<String> words) {}

    /** The version of the Python package that this jar was made with. */
    public static String version() {
        return version(ROOT);
    }

    /**
     * Throws BUSMQ_JAR_VERSION where the class path has jars of several versions, of which classes
     * would be mixed.
     */
    static void refuseOtherJars() {
        Map<String, String> jars = new TreeMap<>();
        try {
            for (URL each : Collections.list(Thread.currentThread()
                    .getContextClassLoader()
                    .getResources("busmq/spark/contract.json"))) {
                String jar = each.toString().replaceFirst("^jar:", "").replaceFirst("!.*", "");
                jars.put(version(new ObjectMapper().readTree(each)), jar);
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        if (jars.size() > 1) {
            String found = jars.entrySet().stream()
                    .map(jar -> jar.getKey() + " (" + jar.getValue() + ")")
                    .collect(Collectors.joining(", "));
            throw BusException.of(
                    ErrorKind.JAR_VERSION,
                    "found",
                    "the class path of Spark has jars of busmq_spark of several versions: "
                            + found);
        }
    }

    private static String version(JsonNode contract) {
        return contract.path("version").asText("of no known version");
    }

    /** A constant; its name ends in its unit where it has one. */
    public static long number(String name) {
        return entry("numbers", name).longValue();
    }

    /** Return a constant as an int. */
    public static int intNumber(String name) {
        return Math.toIntExact(number(name));
    }

    /** A text that both put into errors, or into the names of keys. */
    public static String text(String name) {
        return entry("texts", name).textValue();
    }

    /** The errors of a table of {@code contract.json}, in its order. */
    public static Map<String, ErrorKind> errorKinds(String name) {
        Map<String, ErrorKind> kinds = new LinkedHashMap<>();
        ROOT.get(name)
                .properties()
                .forEach(entry -> kinds.put(
                        entry.getKey(), ErrorKind.ofCode(entry.getValue().textValue())));
        return kinds;
    }

    public static Set<String> words(String name) {
        return words(entry("sets", name));
    }

    /** The names of Spark's own options, in small letters. */
    public static Set<String> sparkOptionNames() {
        return words(ROOT.get("engineOptions"));
    }

    /**
     * Return the error text for an option of Spark's Kafka source; {@code name} is in small
     * letters. Null where the option has no other name here.
     */
    public static String kafkaOptionHint(String name) {
        JsonNode known = ROOT.get("kafkaOptionHints").get(name);
        return known != null
                ? known.textValue()
                : name.startsWith("kafka.") ? text("kafkaClientHint") : null;
    }

    /**
     * Return the factor of each unit letter, in the smallest unit ({@code seconds} or
     * {@code bytes}).
     */
    public static Map<String, Long> units(String of) {
        Map<String, Long> units = new LinkedHashMap<>();
        entry("units", of)
                .properties()
                .forEach(entry -> units.put(entry.getKey(), entry.getValue().longValue()));
        return units;
    }

    /** The names of all options of a use, {@code read} or {@code write}. */
    public static Set<String> optionNames(String use) {
        Set<String> names = new TreeSet<>();
        entry("options", use).fieldNames().forEachRemaining(names::add);
        return names;
    }

    /**
     * Whether the use, {@code read} or {@code write}, takes an option of this name or alias, in
     * whatever case.
     */
    public static boolean takesOption(String use, String name) {
        return optionNames(use).stream()
                .anyMatch(each -> each.equalsIgnoreCase(name)
                        || option(use, each).alias().equalsIgnoreCase(name));
    }

    /** Return an option of a use, {@code read} or {@code write}. */
    public static Option option(String use, String name) {
        JsonNode row = entry("options", use).get(name);
        if (row == null) {
            throw new IllegalStateException("contract.json has no option " + name + " to " + use);
        }
        List<String> words = new ArrayList<>();
        row.path("words").forEach(word -> words.add(word.textValue()));
        return new Option(
                row.get("alias").textValue(),
                row.get("default").textValue(),
                row.get("parser").textValue(),
                row.path("least").longValue(),
                row.path("most").isNumber() ? row.get("most").longValue() : null,
                words);
    }

    static String template(String code) {
        return entry("errors", code).get("template").textValue();
    }

    static boolean retriable(String code) {
        return entry("errors", code).get("retriable").booleanValue();
    }

    private static JsonNode entry(String kind, String name) {
        JsonNode value = ROOT.get(kind).get(name);
        if (value == null) {
            throw new IllegalStateException("contract.json has no " + name + " among its " + kind);
        }
        return value;
    }

    private static Set<String> words(JsonNode list) {
        Set<String> words = new TreeSet<>();
        list.forEach(word -> words.add(word.textValue()));
        return words;
    }

    private static JsonNode load() {
        try (InputStream in = SharedPythonConstants.class.getResourceAsStream("contract.json")) {
            return new ObjectMapper().readTree(in);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
