package busmq.spark.options;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.PyText;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * The options of one use, parsed once, where they come in; look-up ignores case, as everywhere in
 * Spark. Errors are worded as in {@code option_parsing.py}.
 */
final class OptionTable {
    /** Options that Spark itself takes from the same map; they are no errors. */
    private static final Set<String> SPARK_OPTIONS = SharedPythonConstants.sparkOptionNames();

    private final Map<String, OptionRow<?>> rows = new LinkedHashMap<>();

    /** {@code use} is that of the contract: read or write. */
    OptionTable(String use, List<OptionRow<?>> rows) {
        Set<String> names = rows.stream().map(OptionRow::name).collect(Collectors.toSet());
        if (!names.equals(SharedPythonConstants.optionNames(use))) {
            throw new IllegalStateException("the options of a " + use + " are " + names
                    + ", those of contract.json " + SharedPythonConstants.optionNames(use));
        }
        for (OptionRow<?> row : rows) {
            row.allNames().forEach(name -> this.rows.put(name.toLowerCase(Locale.ROOT), row));
        }
    }

    /** The values for what the user gave. Throws for an unknown name, a bad value or a conflict. */
    Values parse(Map<String, String> given) {
        Values values = new Values();
        given.forEach((name, text) -> {
            String low = name.toLowerCase(Locale.ROOT);
            if (low.startsWith("federation.")) {
                throw BusException.configError("option " + PyText.repr(name)
                        + " is for a federation server, which format(\"busmq-realtime\")"
                        + " does not reach; use format(\"busmq\"), which has the same"
                        + " options, or a Redis that can be reached from here");
            }
            OptionRow<?> row = rows.get(low);
            if (row != null) {
                values.add(row, name, text);
            } else if (!SPARK_OPTIONS.contains(low)) {
                throw BusException.configError(describeUnknown(name));
            }
        });
        return values;
    }

    private String describeUnknown(String name) {
        String near = Suggestion.nearest(name.toLowerCase(Locale.ROOT), rows.keySet());
        String hint = near == null
                ? "known are: "
                        + String.join(
                                ", ",
                                rows.values().stream()
                                        .map(OptionRow::name)
                                        .distinct()
                                        .sorted()
                                        .toList())
                : "did you mean " + PyText.repr(rows.get(near).name()) + "?";
        String kafkaHint = SharedPythonConstants.kafkaOptionHint(name.toLowerCase(Locale.ROOT));
        if (kafkaHint != null) {
            hint = kafkaHint;
        }
        if (name.equalsIgnoreCase("path")) {
            hint = "name queues with option 'subscribe' (source) or 'queue' (sink) and call"
                    + " load() or save() without a path";
        }
        return "unknown option " + PyText.repr(name) + "; " + hint;
    }

    /** Return the given values, with defaults for the other options. */
    static final class Values {
        private final Map<OptionRow<?>, Object> given = new HashMap<>();
        private final Map<OptionRow<?>, String> givenNames = new HashMap<>();

        private void add(OptionRow<?> row, String name, String text) {
            String first = givenNames.putIfAbsent(row, name);
            if (first != null) {
                Comparator<String> ownNameFirst =
                        Comparator.comparing(each -> !each.equals(row.name()));
                List<String> both = Stream.of(first, name)
                        .sorted(ownNameFirst.thenComparing(Comparator.naturalOrder()))
                        .toList();
                throw BusException.configError(
                        "option " + PyText.repr(both.get(0)) + " is given twice, also as "
                                + PyText.repr(both.get(1)) + "; give it once");
            }
            try {
                given.put(row, row.parse().apply(text));
            } catch (IllegalArgumentException error) {
                String shown = row.isSecret() ? "***" : PyText.repr(text);
                throw BusException.configError("option " + PyText.repr(row.name()) + " is " + shown
                        + "; expected " + error.getMessage());
            }
        }

        @SuppressWarnings("unchecked") // the row's own parser made it
        <T> T get(OptionRow<T> row) {
            return given.containsKey(row) ? (T) given.get(row) : row.fallback();
        }
    }
}
