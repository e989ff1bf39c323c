package busmq.spark.redis;

import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;

/** Answers every command with its last word, and a subscription with its confirmation. */
final class EchoServer implements AutoCloseable {
    /** A word for each connection that has ended. */
    final BlockingQueue<String> ended = new LinkedBlockingQueue<>();
    /** The last words of all commands. */
    final List<String> received = Collections.synchronizedList(new ArrayList<>());
    /** By last word the error that such a command gets, once. */
    final Map<String, String> refused = new ConcurrentHashMap<>();

    private final ServerSocket listening;

    EchoServer() throws IOException {
        listening = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        start(this::accept);
    }

    String url() {
        return "redis://127.0.0.1:" + listening.getLocalPort();
    }

    RedisServerAddress endpoint() {
        return new RedisServerAddress(
                "127.0.0.1",
                listening.getLocalPort(),
                false,
                null,
                null,
                new TlsFiles(null, null, null, true));
    }

    private static void start(Runnable work) {
        Thread thread = new Thread(work, "echo");
        thread.setDaemon(true);
        thread.start();
    }

    private void accept() {
        try {
            while (true) {
                Socket socket = listening.accept();
                start(() -> serve(socket));
            }
        } catch (IOException error) {
            ended.add("all"); // closed
        }
    }

    private void serve(Socket socket) {
        try (socket;
                DataInputStream in = new DataInputStream(socket.getInputStream());
                OutputStream out = socket.getOutputStream()) {
            for (int first = in.read(); first == '*'; first = in.read()) {
                List<String> words = new ArrayList<>();
                for (int count = Integer.parseInt(line(in)); count > 0; count--) {
                    int length = Integer.parseInt(line(in).substring(1));
                    words.add(new String(in.readNBytes(length), StandardCharsets.UTF_8));
                    line(in);
                }
                String last = words.get(words.size() - 1);
                received.add(last);
                String error = refused.remove(last);
                String reply = error != null
                        ? "-" + error + "\r\n"
                        : words.get(0).equals("SUBSCRIBE")
                                ? "*3\r\n$9\r\nsubscribe\r\n" + bulk(last) + ":1\r\n"
                                : bulk(last);
                out.write(reply.getBytes(StandardCharsets.UTF_8));
            }
            ended.add("one");
        } catch (IOException error) {
            ended.add("one");
        }
    }

    private static String bulk(String text) {
        return "$" + text.length() + "\r\n" + text + "\r\n";
    }

    private static String line(DataInputStream in) throws IOException {
        StringBuilder text = new StringBuilder();
        for (int next = in.read(); next != '\n'; next = in.read()) {
            if (next < 0) {
                throw new IOException("ended");
            }
            text.append(next == '\r' ? "" : Character.toString(next));
        }
        return text.toString();
    }

    @Override
    public void close() {
        try {
            listening.close();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
