package busmq.spark.core;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Keys are those of npm busmq, and a name is placed where npm busmq places it. */
class KeysTest {
    static Stream<JsonNode> placed() throws IOException {
        JsonNode golden = new ObjectMapper()
                .readTree(
                        Path.of("..", "tests", "golden", "redis-location.json").toFile());
        return StreamSupport.stream(golden.get("vectors").spliterator(), false);
    }

    @ParameterizedTest
    @MethodSource("placed")
    void aKeyHasTheServerThatNpmBusmqWasSeenToUse(JsonNode vector) {
        String key = vector.get("key").asText();
        assertEquals(
                vector.get("index").asInt(),
                ServerIndex.of(key, vector.get("servers").asInt()));
        assertEquals(vector.get("codeUnitSum").asInt(), ServerIndex.of(key, 1_000_000_000));
    }

    @Test
    void theKeysAreSpeltAsNpmBusmqSpellsThem() {
        QueueKeys keys = new QueueKeys("orders", false);
        assertEquals(
                List.of(
                        "bus:queue:orders:metadata",
                        "bus:queue:orders:messages",
                        "bus:queue:orders:msgid",
                        "bus:queue:orders:toack"),
                keys.peerKeys());
        assertEquals("bus:queue:orders:available", keys.available());
        assertEquals(
                List.of("bus:queue:orders:acks", "bus:queue:orders:sinks"),
                keys.all().subList(4, 6));
        assertEquals("bus:queue:orders:lease:daily", keys.lease("daily"));
        assertEquals("bus:queue:orders:stage:a-1", keys.stage("a-1"));
        assertEquals("bus:sink:s1", QueueKeys.sinkRecord("s1"));
    }

    @Test
    void allKeysOfAQueueShareTheHashTagOfACluster() {
        QueueKeys keys = new QueueKeys("orders", true);
        Stream.concat(
                        keys.all().stream(),
                        Stream.of(keys.available(), keys.lease("x"), keys.stage("y")))
                .forEach(key -> assertTrue(key.startsWith("{bus:queue:orders}:"), key));
    }

    @ParameterizedTest
    @ValueSource(strings = {"orders", "a:metadata", "}", "{x}", "é\ud83d\ude00", " "})
    void theNameOfAQueueIsFoundAgainInItsMetadataKey(String name) {
        for (boolean cluster : new boolean[] {false, true}) {
            assertEquals(
                    name, QueueKeys.queueName(new QueueKeys(name, cluster).metadata(), cluster));
        }
        assertNull(QueueKeys.queueName(new QueueKeys(name, false).messages(), false));
        assertNull(QueueKeys.queueName("bus:queue::metadata", false));
    }
}
