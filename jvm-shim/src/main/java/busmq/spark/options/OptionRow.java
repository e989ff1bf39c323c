package busmq.spark.options;

import busmq.spark.SharedPythonConstants;
import java.util.List;
import java.util.Locale;
import java.util.function.Function;

/**
 * An option as the contract declares it. A parser throws {@link IllegalArgumentException} whose
 * message says what was expected.
 *
 * @param fallback the value where the option is not given; null: none
 */
record OptionRow(String name, String alias, Function<String, ?> parse, Object fallback) {
    static OptionRow of(String use, String name) {
        SharedPythonConstants.Option option = SharedPythonConstants.option(use, name);
        Function<String, ?> parse = Parsers.of(option);
        return new OptionRow(name, option.alias(), parse, fallback(option, parse));
    }

    private static Object fallback(
            SharedPythonConstants.Option option, Function<String, ?> parse) {
        if (option.fallback() != null) {
            return option.fallback().isEmpty() ? "" : parse.apply(option.fallback());
        }
        return switch (option.parser()) {
            case "names" -> List.of();
            case "starting", "ending" -> OffsetsOption.NOT_GIVEN;
            default -> null;
        };
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
