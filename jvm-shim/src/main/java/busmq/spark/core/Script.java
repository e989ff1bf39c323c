package busmq.spark.core;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * One Lua script of {@code busmq_spark/core/lua}; {@code digest} is what EVALSHA takes. The text is put together as {@code core/scripts.py}
 * does, byte for byte, so that both implementations share what Redis has cached.
 */
public record Script(String name, String text, String digest) {
    private static final String INCLUDE = "-- @include ";
    private static final Map<String, Script> LOADED = new ConcurrentHashMap<>();

    /** The script {@code lua/<name>.lua} with its includes; read once. */
    public static Script load(String name) {
        return LOADED.computeIfAbsent(name, Script::read);
    }

    private static Script read(String name) {
        StringBuilder out = new StringBuilder();
        resource(name).lines().forEach(line -> {
            if (line.startsWith(INCLUDE)) {
                resource("include/" + line.substring(INCLUDE.length()).strip()).lines().forEach(code -> append(out, code));
            } else {
                append(out, line);
            }
        });
        String text = out.substring(0, Math.max(0, out.length() - 1));
        return new Script(name, text, Fingerprint.hex("SHA-1", StandardCharsets.UTF_8.encode(text)));
    }

    private static void append(StringBuilder out, String line) {
        if (!line.startsWith("--")) {
            out.append(line).append('\n');
        }
    }

    private static String resource(String name) {
        try (InputStream in = Script.class.getResourceAsStream("/busmq/spark/lua/" + name + ".lua")) {
            if (in == null) {
                throw new IllegalArgumentException("no script " + name);
            }
            return new String(in.readAllBytes(), StandardCharsets.UTF_8);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
