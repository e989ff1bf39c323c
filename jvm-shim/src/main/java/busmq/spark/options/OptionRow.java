package busmq.spark.options;

import busmq.spark.SharedPythonConstants;
import java.util.List;
import java.util.Locale;
import java.util.function.Function;

/**
 * A row of an option table. A parser throws {@link IllegalArgumentException} whose message says
 * what was expected.
 */
record OptionRow<T>(String name, String alias, Function<String, T> parse, T fallback) {
    /** With the alias and the default of the contract. */
    static <T> OptionRow<T> of(String name, Function<String, T> parse) {
        return of(name, parse, null);
    }

    /** Make a row; {@code absent} is the value where the contract has no default. */
    static <T> OptionRow<T> of(String name, Function<String, T> parse, T absent) {
        SharedPythonConstants.Option option = SharedPythonConstants.option(name);
        return new OptionRow<>(
                name,
                option.alias(),
                parse,
                option.fallback() == null ? absent : parse.apply(option.fallback()));
    }

    List<String> allNames() {
        return alias.isEmpty() ? List.of(name) : List.of(name, alias);
    }

    /** Whether the value must not be printed; Spark redacts options with these names too. */
    boolean isSecret() {
        String low = name.toLowerCase(Locale.ROOT);
        return low.contains("password") || low.contains("url") || low.contains("secret");
    }
}
