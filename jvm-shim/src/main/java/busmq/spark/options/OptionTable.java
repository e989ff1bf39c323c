package busmq.spark.options;

import busmq.spark.BusException;
import busmq.spark.Contract;
import busmq.spark.PyText;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;

/** The options of one use, parsed once at the border; look-up is case-blind, as everywhere in Spark. Errors are worded as in {@code options.py}. */
final class OptionTable {
    /** What Spark itself takes from the same option map; not ours, so not an error. */
    private static final Set<String> ENGINE = Contract.engineOptions();

    private final Map<String, Row<?>> rows = new LinkedHashMap<>();

    /** {@code use} is that of the contract: read or write. */
    OptionTable(String use, List<Row<?>> rows) {
        Set<String> names = rows.stream().map(Row::name).collect(Collectors.toSet());
        if (!names.equals(Contract.options(use))) {
            throw new IllegalStateException("the options of a " + use + " are " + names + ", those of contract.json " + Contract.options(use));
        }
        for (Row<?> row : rows) {
            row.names().forEach(name -> this.rows.put(name.toLowerCase(Locale.ROOT), row));
        }
    }

    /** The values for what the user gave. Throws for an unknown name, a bad value or a conflict. */
    Values parse(Map<String, String> given) {
        Values values = new Values();
        given.forEach((name, text) -> {
            String low = name.toLowerCase(Locale.ROOT);
            if (low.startsWith("federation.")) {
                throw BusException.config("option " + PyText.repr(name) + " is for a federation server, which format(\"busmq-realtime\") does not "
                        + "reach; use format(\"busmq\"), which has the same options, or a Redis that can be reached from here");
            }
            Row<?> row = rows.get(low);
            if (row != null) {
                values.add(row, text);
            } else if (!ENGINE.contains(low)) {
                throw BusException.config(unknown(name));
            }
        });
        return values;
    }

    private String unknown(String name) {
        String near = Suggestion.nearest(name.toLowerCase(Locale.ROOT), rows.keySet());
        String hint = near == null ? "known are: " + String.join(", ", rows.values().stream().map(Row::name).distinct().sorted().toList())
                : "did you mean " + PyText.repr(rows.get(near).name()) + "?";
        String ofKafka = Contract.ofKafka(name.toLowerCase(Locale.ROOT));
        if (ofKafka != null) {
            hint = ofKafka;
        }
        if (name.equalsIgnoreCase("path")) {
            hint = "name queues with option 'subscribe' (source) or 'queue' (sink) and call load() or save() without a path";
        }
        return "unknown option " + PyText.repr(name) + "; " + hint;
    }

    /** What was given, and the defaults of the rest. */
    static final class Values {
        private final Map<Row<?>, Object> given = new HashMap<>();
        private final Set<Row<?>> seen = new HashSet<>();

        private void add(Row<?> row, String text) {
            if (!seen.add(row)) {
                throw BusException.config("option " + PyText.repr(row.name()) + " is given twice, also as " + PyText.repr(row.alias())
                        + "; give it once");
            }
            try {
                given.put(row, row.parse().apply(text));
            } catch (IllegalArgumentException error) {
                String shown = row.secret() ? "***" : PyText.repr(text);
                throw BusException.config("option " + PyText.repr(row.name()) + " is " + shown + "; expected " + error.getMessage());
            }
        }

        @SuppressWarnings("unchecked") // the row's own parser made it
        <T> T get(Row<T> row) {
            return given.containsKey(row) ? (T) given.get(row) : row.fallback();
        }
    }
}
