package busmq.spark.options;

import static java.util.stream.Collectors.toSet;

import busmq.spark.BusException;
import busmq.spark.SharedPythonConstants;
import busmq.spark.PyText;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.RecordComponent;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;

/**
 * The options of one use, parsed once, where they come in, into a record whose components name
 * them; look-up ignores case, as everywhere in Spark. Errors are worded as in
 * {@code option_parsing.py}.
 */
final class OptionTable<R extends Record> {
    /** Options that Spark itself takes from the same map; they are no errors. */
    private static final Set<String> SPARK_OPTIONS = SharedPythonConstants.sparkOptionNames();

    /**
     * Options that no record has. {@code onUnavailable} has no meaning without federation, and is
     * taken for the sake of one option map for both formats; {@link EngineChoice} has the other.
     */
    private static final Set<String> WITHOUT_COMPONENT = Set.of("onUnavailable", "engine");

    private final Class<R> record;
    private final Map<String, OptionRow> rows = new LinkedHashMap<>();

    /** {@code use} is that of the contract: read or write. */
    OptionTable(String use, Class<R> record) {
        this.record = record;
        Set<String> names =
                Stream.concat(namesIn(record), WITHOUT_COMPONENT.stream()).collect(toSet());
        if (!names.equals(SharedPythonConstants.optionNames(use))) {
            throw new IllegalStateException("the options of a " + use + " are " + names
                    + ", those of contract.json " + SharedPythonConstants.optionNames(use));
        }
        for (String each : names) {
            OptionRow row = OptionRow.of(use, each);
            row.allNames().forEach(name -> rows.put(name.toLowerCase(Locale.ROOT), row));
        }
    }

    private static Stream<String> namesIn(Class<?> record) {
        return Stream.of(record.getRecordComponents()).flatMap(each -> {
            OptionName name = each.getAnnotation(OptionName.class);
            return name == null ? namesIn(each.getType()) : Stream.of(name.value());
        });
    }

    /** The record for what the user gave. Throws for an unknown name, a bad value or a conflict. */
    R parse(Map<String, String> given) {
        Values values = new Values();
        given.forEach((name, text) -> {
            String low = name.toLowerCase(Locale.ROOT);
            if (low.startsWith("federation.")) {
                throw BusException.configError("option " + PyText.repr(name)
                        + " is for a federation server, which format(\"busmq-realtime\")"
                        + " does not reach; use format(\"busmq\"), which has the same"
                        + " options, or a Redis that can be reached from here");
            }
            OptionRow row = rows.get(low);
            if (row != null) {
                values.add(row, name, text);
            } else if (!SPARK_OPTIONS.contains(low)) {
                throw BusException.configError(describeUnknown(name));
            }
        });
        return make(record, values);
    }

    /** A component without an option is a record of others. */
    private <T> T make(Class<T> type, Values values) {
        RecordComponent[] components = type.getRecordComponents();
        Object[] arguments = Stream.of(components)
                .map(each -> {
                    OptionName name = each.getAnnotation(OptionName.class);
                    return name == null
                            ? make(each.getType(), values)
                            : values.get(rows.get(name.value().toLowerCase(Locale.ROOT)));
                })
                .toArray();
        Class<?>[] types =
                Stream.of(components).map(RecordComponent::getType).toArray(Class<?>[]::new);
        try {
            return type.getDeclaredConstructor(types).newInstance(arguments);
        } catch (InvocationTargetException error) {
            if (error.getCause() instanceof RuntimeException cause) {
                throw cause;
            }
            throw new IllegalStateException(error);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
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

    /** The given values, with defaults for the other options. */
    private static final class Values {
        private final Map<OptionRow, Object> given = new HashMap<>();
        private final Map<OptionRow, String> givenNames = new HashMap<>();

        private void add(OptionRow row, String name, String text) {
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

        private Object get(OptionRow row) {
            return given.containsKey(row) ? given.get(row) : row.fallback();
        }
    }
}
