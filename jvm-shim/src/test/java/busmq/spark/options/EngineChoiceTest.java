package busmq.spark.options;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import java.util.HashMap;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Which engine serves {@code format("busmq")}. */
class EngineChoiceTest {
    private static final Map<String, String> QUEUE =
            Map.of("redis.url", "redis://h", "subscribe", "q");

    private static EngineChoice of(Map<String, String> options) {
        return EngineChoice.of(options, null, "4.3.0", Map.of());
    }

    private static Map<String, String> with(String name, String value) {
        Map<String, String> all = new HashMap<>(QUEUE);
        all.put(name, value);
        return all;
    }

    @Test
    void javaDoesWhatItCan() {
        assertEquals(EngineChoice.JAVA, of(QUEUE));
        assertEquals(EngineChoice.JAVA, of(Map.of())); // a table without options
    }

    @ParameterizedTest
    @CsvSource({
        "federation.url, wss://h/bus",
        "FEDERATION.eu.secret, x",
        "option.federation.url, wss://h/bus",
        "redis.url, unix:///run/redis.sock",
        "redis.url, 'redis://h, UNIX:///run/redis.sock'",
        "subscribePattern, (?P<name>q)",
        "jobFields, inbound",
        "option.settle, enrich"
    })
    void pythonDoesTheRest(String name, String value) {
        assertEquals(EngineChoice.PYTHON, of(with(name, value)));
        Map<String, String> asked = with(name, value);
        asked.put("engine", "java");
        BusException refused = assertThrows(BusException.class, () -> of(asked));
        assertEquals(ErrorKind.ENGINE, refused.kind());
        assertTrue(
                refused.getMessage().startsWith("[BUSMQ_ENGINE] engine=java is not possible: "),
                refused.getMessage());
    }

    @Test
    void theAddressOfTheEnvironmentCountsWhereNoneIsGiven() {
        Map<String, String> environment = Map.of("BUSMQ_REDIS_URL", "unix:///run/redis.sock");
        assertEquals(
                EngineChoice.PYTHON,
                EngineChoice.of(Map.of("subscribe", "q"), null, "4.3.0", environment));
        assertEquals(EngineChoice.JAVA, EngineChoice.of(QUEUE, null, "4.3.0", environment));
    }

    @ParameterizedTest
    @CsvSource({
        "3.5.1, PYTHON",
        "4.0.5, PYTHON",
        "4.1.0, JAVA",
        "4.10.0, JAVA",
        "5.0.0-SNAPSHOT, JAVA",
        "40.1.0, JAVA"
    })
    void aSparkThatLacksTheInterfacesHasPython(String spark, EngineChoice engine) {
        assertEquals(engine, EngineChoice.of(QUEUE, null, spark, Map.of()));
    }

    @Test
    void theOptionGoesBeforeTheSession() {
        assertEquals(EngineChoice.PYTHON, EngineChoice.of(QUEUE, "python", "4.3.0", Map.of()));
        assertEquals(
                EngineChoice.JAVA,
                EngineChoice.of(with("Engine", " JAVA "), "python", "4.3.0", Map.of()));
        assertEquals(
                EngineChoice.PYTHON,
                EngineChoice.of(with("option.engine", "python"), "java", "4.3.0", Map.of()));
        assertEquals(
                EngineChoice.JAVA,
                EngineChoice.of(with("engine", "auto"), "python", "4.3.0", Map.of()));
    }

    @ParameterizedTest
    @ValueSource(strings = {"scala", ""})
    void anotherWordIsRefused(String word) {
        String expected = " is '" + word + "'; expected one of auto, java, python";
        assertTrue(assertThrows(BusException.class, () -> of(with("engine", word)))
                .getMessage()
                .endsWith("option 'engine'" + expected));
        assertTrue(assertThrows(
                        BusException.class, () -> EngineChoice.of(QUEUE, word, "4.3.0", Map.of()))
                .getMessage()
                .endsWith(EngineChoice.SETTING + expected));
    }

    @Test
    void whatOnlyJavaHasIsNotAskedOfPython() {
        EngineChoice.requireJava(with("engine", "auto"), "4.3.0");
        BusException refused = assertThrows(
                BusException.class,
                () -> EngineChoice.requireJava(with("engine", "python"), "4.3.0"));
        assertEquals(ErrorKind.ENGINE, refused.kind());
        String said = assertThrows(
                        BusException.class,
                        () -> EngineChoice.requireJava(with("jobFields", "a"), "4.3.0"))
                .getMessage();
        assertTrue(
                said.contains(
                        "engine=java is not possible: option 'jobFields' is for jobs, which Java"
                                + " does not know"),
                said);
    }

    @Test
    void whatOnlyJavaHasNeedsSpark41() {
        EngineChoice.requireJava(QUEUE, "4.1.0");
        String said = assertThrows(
                        BusException.class, () -> EngineChoice.requireJava(QUEUE, "4.0.1"))
                .getMessage();
        assertTrue(
                said.contains(
                        "engine=java is not possible: this is Spark 4.0.1, and the engine in Java"
                                + " needs Spark 4.1 or later"),
                said);
    }
}
