package busmq.spark.options;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import busmq.spark.PyText;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;
import org.apache.spark.sql.connector.catalog.TableCatalog;

/**
 * Which implementation serves {@code format("busmq")}: option {@code engine}, else the setting of
 * the session, else Java for what it can do.
 */
public enum EngineChoice {
    JAVA,
    PYTHON;

    /** The setting with which a session chooses for all its queries; the option overrides it. */
    public static final String SETTING = "spark.datasource.busmq.engine";

    private static final OptionRow OPTION = OptionRow.of("read", "engine");
    private static final Pattern OLD_SPARK = Pattern.compile("([0-3]\\.|4\\.0\\.).*");

    /**
     * The engine for these options. Throws BUSMQ_ENGINE where Java is asked for and cannot do it.
     *
     * @param given of a use, or the properties of a table
     * @param setting what the session says; null: nothing
     * @param environment the variables of this process
     */
    public static EngineChoice of(
            Map<String, String> given,
            String setting,
            String spark,
            Map<String, String> environment) {
        Map<String, String> options = withoutTableOptionPrefix(given);
        String option = options.get(OPTION.name());
        String chosen = option != null
                ? parseEngine("option 'engine'", option)
                : setting != null ? parseEngine(SETTING, setting) : (String) OPTION.fallback();
        if (chosen.equals("python")) {
            return PYTHON;
        }
        String reason = whyNotJava(options, spark, environment);
        if (reason != null && chosen.equals("java")) {
            throw engineError(
                    "java",
                    reason,
                    "Leave engine out, or set it to auto or python: the engine in Python has the"
                            + " same options");
        }
        return reason == null ? JAVA : PYTHON;
    }

    /**
     * Throws BUSMQ_ENGINE where what only Java has is used on a Spark that is older than Java's
     * engine, or with engine=python.
     */
    public static void requireJava(Map<String, String> given, String spark) {
        if (OLD_SPARK.matcher(spark).matches()) {
            throw engineError(
                    "java",
                    whySparkIsTooOld(spark),
                    "Use format(\"busmq\"), which the engine in Python serves on this Spark");
        }
        Map<String, String> options = withoutTableOptionPrefix(given);
        String jobs = whyJobsNeedPython(options);
        if (jobs != null) {
            throw engineError(
                    "java",
                    jobs,
                    "Use load() or save() of format(\"busmq\"), which the engine in Python serves");
        }
        String option = options.get(OPTION.name());
        if (option != null && parseEngine("option 'engine'", option).equals("python")) {
            throw engineError(
                    "python",
                    "a table, a catalog and format(\"busmq-realtime\") are in Java only",
                    "Leave engine out, or use load() or save() of format(\"busmq\")");
        }
    }

    /** Why Java cannot do it; null: it can. */
    private static String whyNotJava(
            Map<String, String> options, String spark, Map<String, String> environment) {
        if (OLD_SPARK.matcher(spark).matches()) {
            return whySparkIsTooOld(spark);
        }
        String jobs = whyJobsNeedPython(options);
        if (jobs != null) {
            return jobs;
        }
        for (String name : options.keySet()) {
            if (name.toLowerCase(Locale.ROOT).startsWith("federation.")) {
                return "option " + PyText.repr(name)
                        + " is for a federation server, which Java does not reach";
            }
        }
        String url = options.getOrDefault("redis.url", "");
        for (String each : (url.isEmpty() ? environment.getOrDefault("BUSMQ_REDIS_URL", "") : url)
                .split("[ \\t]*,[ \\t]*")) {
            if (each.toLowerCase(Locale.ROOT).startsWith("unix:")) {
                return "redis.url names a unix socket, to which Java does not speak";
            }
        }
        try {
            Pattern.compile(options.getOrDefault("subscribePattern", ""));
            return null;
        } catch (PatternSyntaxException error) {
            return "subscribePattern is no regular expression of Java (" + error.getDescription()
                    + ")";
        }
    }

    private static String whyJobsNeedPython(Map<String, String> options) {
        for (String name : new String[] {"jobFields", "settle"}) {
            if (options.containsKey(name)) {
                return "option " + PyText.repr(name) + " is for jobs, which Java does not know";
            }
        }
        return null;
    }

    private static String whySparkIsTooOld(String spark) {
        return "this is Spark " + spark + ", and the engine in Java needs Spark 4.1 or later";
    }

    private static BusException engineError(String engine, String reason, String remedy) {
        return BusException.of(
                ErrorKind.ENGINE, "engine", engine, "reason", reason, "remedy", remedy);
    }

    private static String parseEngine(String name, String text) {
        try {
            return (String) OPTION.parse().apply(text);
        } catch (IllegalArgumentException error) {
            throw BusException.configError(
                    name + " is " + PyText.repr(text) + "; expected " + error.getMessage());
        }
    }

    /** Without the prefix that the OPTIONS of a table have among its properties. */
    public static Map<String, String> withoutTableOptionPrefix(Map<String, String> given) {
        Map<String, String> plain = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
        String prefix = TableCatalog.OPTION_PREFIX;
        given.forEach((name, value) ->
                plain.put(name.startsWith(prefix) ? name.substring(prefix.length()) : name, value));
        return plain;
    }
}
