package busmq.spark.core;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * A Lua script of {@code busmq_spark/*&#47;lua}; {@code digest} is its SHA-1 for EVALSHA. The text
 * is put together as {@code queue/scripts.py} does, byte for byte, so that both implementations
 * share what Redis has cached.
 */
public record Script(String name, String text, String digest) {
    private static final String INCLUDE = "-- @include ";
    private static final Map<String, Script> CACHE = new ConcurrentHashMap<>();

    /** The script {@code lua/<name>.lua} with its includes; read once. */
    public static Script load(String name) {
        return CACHE.computeIfAbsent(name, Script::read);
    }

    private static Script read(String name) {
        List<String> lines = new ArrayList<>();
        addCodeLines(name, "", new HashSet<>(), lines);
        String text = String.join("\n", lines);
        return new Script(
                name,
                text,
                MessageFingerprint.hexDigest("SHA-1", StandardCharsets.UTF_8.encode(text)));
    }

    /** The lines of a file with its includes, but for those that are {@code there} before it. */
    private static void addCodeLines(
            String name, String indent, Set<String> there, List<String> lines) {
        readResource(name).lines().forEach(line -> {
            String code = line.stripLeading();
            if (code.startsWith(INCLUDE)) {
                String part = "include/" + code.substring(INCLUDE.length()).strip();
                // The includes of a function end with the function.
                Set<String> around = code.equals(line) ? there : new HashSet<>(there);
                if (around.add(part)) {
                    addCodeLines(
                            part,
                            indent + line.substring(0, line.length() - code.length()),
                            around,
                            lines);
                }
            } else if (!line.startsWith("--")) {
                lines.add(indent + line);
            }
        });
    }

    private static String readResource(String name) {
        try (InputStream in =
                Script.class.getResourceAsStream("/busmq/spark/lua/" + name + ".lua")) {
            if (in == null) {
                throw new IllegalArgumentException("no script " + name);
            }
            return new String(in.readAllBytes(), StandardCharsets.UTF_8);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
