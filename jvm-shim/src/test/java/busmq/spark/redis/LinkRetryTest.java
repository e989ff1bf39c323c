package busmq.spark.redis;

import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.params.provider.Arguments.arguments;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** When what failed is tried again, by the table of tests/core/test_retry.py. */
class LinkRetryTest {
    private static final Path GOLDEN = Path.of("..", "tests", "golden", "retries-v1.json");

    static Stream<Arguments> cases() throws IOException {
        return StreamSupport.stream(
                        new ObjectMapper()
                                .readTree(GOLDEN.toFile())
                                .get("cases")
                                .spliterator(),
                        false)
                .map(found -> arguments(found.get("says").asText(), found));
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("cases")
    void itIsTriedAgainWhenTheTableSays(String says, JsonNode found) {
        LinkRetry retry = new LinkRetry();
        long givenMs = found.get("given_ms").asLong();
        for (JsonNode each : found.get("tries")) {
            ErrorKind kind = Arrays.stream(ErrorKind.values())
                    .filter(one -> one.code().equals(each.get("error").asText()))
                    .findFirst()
                    .orElseThrow();
            BusException error = BusException.of(kind, "url", "redis://host", "reason", "down");
            long elapsedMs = each.get("elapsed_ms").asLong();
            for (int i = 0; i < each.path("times").asInt(1); i++) {
                if (each.has("raises")) {
                    assertSame(
                            error,
                            assertThrows(
                                    BusException.class,
                                    () -> retry.pauseMs(error, elapsedMs, givenMs)));
                    continue;
                }
                long pauseMs = retry.pauseMs(error, elapsedMs, givenMs);
                assertTrue(
                        each.get("pause_ms").get(0).asLong() <= pauseMs
                                && pauseMs <= each.get("pause_ms").get(1).asLong(),
                        () -> pauseMs + " ms");
                retry.onResumed(pauseMs, pauseMs + each.path("overslept_ms").asLong());
            }
        }
    }
}
