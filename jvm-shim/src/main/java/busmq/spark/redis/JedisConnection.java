package busmq.spark.redis;

import busmq.spark.SharedPythonConstants;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.SSLSocketFactory;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import redis.clients.jedis.ClientSetInfoConfig;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;

/**
 * An open connection of Jedis with our settings: a time-out always, no silent retries, bytes in and
 * out. Throws what Jedis throws, whose texts may hold what {@link ErrorTranslator} takes out.
 */
final class JedisConnection extends Connection {
    static final int CONNECT_MS = SharedPythonConstants.intNumber("connectMs");
    /**
     * Longest wait for one reply. Every script of ours takes milliseconds; one that takes longer
     * counts as unreachable. Shorter in tests.
     */
    static final int REPLY_MS =
            Integer.getInteger("busmq.replyMs", SharedPythonConstants.intNumber("replyMs"));
    /**
     * Longest wait for one sentinel, or for one node that is asked for the slots: others may answer
     * sooner.
     */
    static final int NODE_TIMEOUT_MS = SharedPythonConstants.intNumber("nodeTimeoutMs");

    private static final Logger LOG = LoggerFactory.getLogger(JedisConnection.class);
    private static final RedisCall ROLE = RedisCall.command("ROLE");
    private static final RedisCall SET_NAME = RedisCall.command("CLIENT", "SETNAME", "busmq_spark");

    private JedisConnection(RedisServerAddress server, int connectMs, int replyMs) {
        super(
                () -> openSocket(server, connectMs, replyMs),
                DefaultJedisClientConfig.builder()
                        .serverDefaultProtocol()
                        .user(server.user())
                        .password(password(server))
                        .socketTimeoutMillis(replyMs)
                        .connectionTimeoutMillis(connectMs)
                        .clientSetInfoConfig(ClientSetInfoConfig.DISABLED)
                        .build());
    }

    /** A user without a password has an empty one: without any, Jedis would leave the login out. */
    private static String password(RedisServerAddress server) {
        return server.password() == null && server.user() != null ? "" : server.password();
    }

    private static JedisConnection open(RedisServerAddress server, int connectMs, int replyMs) {
        JedisConnection connection = new JedisConnection(server, connectMs, replyMs);
        try {
            connection.bufferCall(SET_NAME, false);
            Object reply = connection.flushAndRead(1).get(0);
            // The name only helps readers of CLIENT LIST.
            if (reply instanceof JedisDataException refused) {
                LOG.debug("connections to {} have no name: {}", server, refused.getMessage());
            }
            return connection;
        } catch (RuntimeException error) {
            connection.closeWithoutQuit();
            throw error;
        }
    }

    /**
     * An open connection to what the endpoint finds now. Behind an endpoint that moves, only a
     * server that says it is master will do.
     */
    static JedisConnection dial(RedisEndpoint endpoint) {
        return dial(endpoint, REPLY_MS);
    }

    static JedisConnection dial(RedisEndpoint endpoint, int replyMs) {
        JedisConnection connection = open(endpoint.resolve(), CONNECT_MS, replyMs);
        try {
            if (endpoint.mayMove() && connection.ask(ROLE) instanceof List<?> role) {
                String found = new String((byte[]) role.get(0), StandardCharsets.UTF_8);
                if (!found.equals("master")) {
                    throw new JedisConnectionException(
                            "this server is a " + found + " now, not a master");
                }
            }
            return connection;
        } catch (RuntimeException error) {
            connection.closeWithoutQuit();
            throw error;
        }
    }

    /** The reply to one question to one server, on a connection of its own. */
    static Object ask(RedisServerAddress server, RedisCall question) {
        JedisConnection connection = open(server, NODE_TIMEOUT_MS, NODE_TIMEOUT_MS);
        try {
            return connection.ask(question);
        } finally {
            connection.closeWithoutQuit();
        }
    }

    private Object ask(RedisCall question) {
        bufferCall(question, false);
        Object reply = flushAndRead(1).get(0);
        if (reply instanceof JedisDataException refused) {
            throw refused;
        }
        return reply;
    }

    /** Puts a call into the buffer; a script by its digest, or with its text when {@code whole}. */
    void bufferCall(RedisCall call, boolean whole) {
        List<byte[]> words = call.words();
        if (call.script() == null) {
            sendCommand(arguments(words.get(0), words.subList(1, words.size())));
            return;
        }
        List<byte[]> all = new ArrayList<>(words.size() + 2);
        all.add((whole ? call.script().text() : call.script().digest())
                .getBytes(StandardCharsets.UTF_8));
        all.add(Integer.toString(call.keyCount()).getBytes(StandardCharsets.US_ASCII));
        all.addAll(words);
        sendCommand(
                arguments((whole ? "EVAL" : "EVALSHA").getBytes(StandardCharsets.US_ASCII), all));
    }

    /** Sends what is in the buffer and reads so many replies, errors among them as values. */
    List<Object> flushAndRead(int count) {
        return getMany(count);
    }

    /**
     * The next message of a subscription. Unlike {@link #flushAndRead} it does not flush what
     * another thread is writing.
     */
    Object receiveMessage() {
        return getUnflushedObject();
    }

    /** Sends what is in the buffer. */
    void flushBuffer() {
        flush();
    }

    /** Closes the connection without QUIT. */
    void closeWithoutQuit() {
        try {
            forceDisconnect();
        } catch (IOException | RuntimeException error) {
            setBroken(); // it is gone either way
        }
    }

    private static CommandArguments arguments(byte[] name, List<byte[]> rest) {
        ProtocolCommand command = () -> name;
        CommandArguments out = new CommandArguments(command);
        rest.forEach(out::add);
        return out;
    }

    private static Socket openSocket(RedisServerAddress server, int connectMs, int replyMs) {
        // Before there is a connection that would be left open.
        SSLSocketFactory secure = server.tls() ? TlsSockets.socketFactory(server.trust()) : null;
        Socket plain = null;
        try {
            plain = connectSocket(server, connectMs);
            plain.setTcpNoDelay(true);
            plain.setKeepAlive(true);
            plain.setSoTimeout(replyMs);
            if (secure == null) {
                return plain;
            }
            plain.setSoTimeout(connectMs);
            SSLSocket socket =
                    (SSLSocket) secure.createSocket(plain, server.host(), server.port(), true);
            SSLParameters parameters = socket.getSSLParameters();
            parameters.setEndpointIdentificationAlgorithm(
                    server.trust().checkHostname() ? "HTTPS" : null);
            socket.setSSLParameters(parameters);
            socket.startHandshake();
            socket.setSoTimeout(replyMs);
            return socket;
        } catch (IOException error) {
            closeQuietly(plain);
            throw new JedisConnectionException("connecting failed", error);
        } catch (RuntimeException error) {
            closeQuietly(plain);
            throw error;
        }
    }

    private static Socket connectSocket(RedisServerAddress server, int connectMs)
            throws IOException {
        IOException last = null;
        for (InetAddress address : InetAddress.getAllByName(server.host())) {
            Socket socket = new Socket();
            try {
                socket.connect(new InetSocketAddress(address, server.port()), connectMs);
                return socket;
            } catch (IOException error) {
                closeQuietly(socket);
                last = error;
            }
        }
        throw last;
    }

    private static void closeQuietly(Socket socket) {
        try {
            if (socket != null) {
                socket.close();
            }
        } catch (IOException error) {
            // It is gone either way.
        }
    }
}
