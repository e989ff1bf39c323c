package busmq.spark.redis;

import busmq.spark.BusException;
import busmq.spark.options.Texts;
import java.io.ByteArrayOutputStream;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Text to servers, as {@code redis_io/urls.py}: {@code redis://[user:password@]host[:port]},
 * {@code rediss://} for TLS, several separated by commas. A user part without a colon is the
 * password; a bus is always in database 0. Errors repeat nothing of a URL: a password that breaks
 * it may stand anywhere in it.
 */
final class Urls {
    private static final Pattern URL =
            Pattern.compile("([A-Za-z]+)://([^/?#]*)([^?#]*)(\\?[^#]*)?(#.*)?", Pattern.DOTALL);
    private static final Pattern ADDRESS =
            Pattern.compile("(?:\\[([^\\]]*)]|([^\\]:\\[]*))(?::([^\\]:\\[]*))?");
    private static final Pattern HOST =
            Pattern.compile("(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(?:\\.[A-Za-z0-9_-]{1,63})*\\.?");
    private static final Pattern IPV6 = Pattern.compile("[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*");
    private static final Pattern LAYOUT_SCHEME =
            Pattern.compile("[^:/@]*(sentinel|cluster).*", Pattern.DOTALL);
    private static final Pattern LONE_PERCENT = Pattern.compile("%(?![0-9A-Fa-f]{2})");

    private Urls() {}

    /**
     * The servers of a comma list; {@code login} holds for every URL that has no credentials of its
     * own.
     */
    static List<RedisServerAddress> parse(String urls, RedisServerAddress login, int defaultPort) {
        if (urls.isBlank()) {
            throw BusException.configError(
                    "redis.url is empty; expected redis://host:port, or several separated by"
                            + " commas");
        }
        List<String> given = Texts.splitAtCommas(urls);
        List<RedisServerAddress> servers = new ArrayList<>();
        for (String url : given) {
            try {
                RedisServerAddress server = parseServer(url, login, defaultPort);
                checkIsNew(server, servers);
                servers.add(server);
            } catch (IllegalArgumentException bad) {
                String which = given.size() > 1
                        ? "URL " + (servers.size() + 1) + " of " + given.size() + " in redis.url"
                        : "redis.url";
                throw BusException.configError(which + ": " + bad.getMessage()
                        + "; expected redis://[user:password@]host[:port] or rediss://…. "
                        + "In a password percent-encode , @ / ? # [ ] and %");
            }
        }
        return servers;
    }

    private static void checkIsNew(RedisServerAddress server, List<RedisServerAddress> before) {
        for (int i = 0; i < before.size(); i++) {
            if (before.get(i).host().equals(server.host())
                    && before.get(i).port() == server.port()) {
                throw new IllegalArgumentException(
                        "it names the server of URL " + (i + 1) + " again");
            }
        }
    }

    private static RedisServerAddress parseServer(
            String url, RedisServerAddress login, int defaultPort) {
        if (url.isEmpty()) {
            throw new IllegalArgumentException("it is empty");
        }
        String stray = Texts.describeStrayCharacter(url, true);
        if (stray != null) {
            throw new IllegalArgumentException("it " + stray);
        }
        Matcher parts = URL.matcher(url);
        String scheme = parts.matches() ? parts.group(1).toLowerCase(Locale.ROOT) : "";
        if (scheme.equals("unix")) {
            throw new IllegalArgumentException(
                    "format(\"busmq-realtime\") speaks to no unix socket, as format(\"busmq\")"
                            + " does");
        }
        if (!scheme.equals("redis") && !scheme.equals("rediss")) {
            boolean layout = LAYOUT_SCHEME.matcher(url.toLowerCase(Locale.ROOT)).matches();
            throw new IllegalArgumentException("it does not begin with a known scheme"
                    + (layout ? " (sentinels and clusters are named with redis.layout)" : ""));
        }
        String place = parts.group(2);
        int at = place.lastIndexOf('@');
        String given = place.substring(0, Math.max(at, 0));
        if (given.contains("[") || given.contains("]")) {
            throw new IllegalArgumentException("it is not a URL");
        }
        if (url.indexOf('@', scheme.length() + 3 + place.length()) >= 0) {
            throw new IllegalArgumentException("it has an @ after its address");
        }
        if (at >= 0 && given.replace(":", "").isEmpty()) {
            throw new IllegalArgumentException(
                    "it has an @ with neither user nor password before it");
        }
        String[] credentials = parseCredentials(given);
        String user = credentials[0];
        String password = credentials[1];
        if (password == null) {
            user = user == null ? login.user() : user;
            password = login.password();
        }
        RedisServerAddress found = parseAddress(place.substring(at + 1), defaultPort);
        checkNothingFollows(parts.group(3), parts.group(4), parts.group(5));
        return new RedisServerAddress(
                found.host(), found.port(), scheme.equals("rediss"), user, password, login.trust());
    }

    private static void checkNothingFollows(String path, String query, String fragment) {
        if (!path.isEmpty() && !path.equals("/") && !path.equals("/0")) {
            String shown = path.matches("/[0-9]{1,4}") ? "database " + path.substring(1) : "a path";
            throw new IllegalArgumentException(
                    "it names " + shown + ", and a bus is always in database 0, as npm peers and"
                            + " clusters know no other; take the path off, and use a"
                            + " Redis of its own to keep two buses apart");
        }
        if (query != null || fragment != null) {
            throw new IllegalArgumentException(
                    "it has " + (query != null ? "a query (?…)" : "a fragment (#…)")
                            + ", and a setting in a URL is none here; use the options");
        }
    }

    /** Host and port. */
    private static RedisServerAddress parseAddress(String address, int defaultPort) {
        Matcher found = ADDRESS.matcher(address);
        if (!found.matches()) {
            boolean many = address.chars().filter(c -> c == ':').count() > 1
                    && !address.matches(".*[\\[\\]].*");
            throw new IllegalArgumentException(
                    "it is not a URL" + (many ? ": an IPv6 address is written [::1]" : ""));
        }
        String port = found.group(3);
        if (port != null
                && (!port.matches("[0-9]{1,5}")
                        || Integer.parseInt(port) < 1
                        || Integer.parseInt(port) > 65535)) {
            throw new IllegalArgumentException("its port is not a number from 1 to 65535");
        }
        String host = found.group(1);
        if (host != null) {
            if (!isIpv6(host)) {
                throw new IllegalArgumentException("it has no IPv6 address between [ and ]");
            }
        } else {
            host = found.group(2);
            if (host.isEmpty()) {
                throw new IllegalArgumentException("it has no host");
            }
            if (!HOST.matcher(host).matches()) {
                throw new IllegalArgumentException(
                        "its host is none: it has letters, digits, - and _, with single dots"
                                + " between");
            }
        }
        int number = port == null ? defaultPort : Integer.parseInt(port);
        return new RedisServerAddress(
                host.toLowerCase(Locale.ROOT), number, false, null, null, null);
    }

    private static boolean isIpv6(String text) {
        try {
            // A literal address: no DNS query is sent.
            return IPV6.matcher(text).matches() && InetAddress.getByName("[" + text + "]") != null;
        } catch (UnknownHostException error) {
            return false;
        }
    }

    private static String[] parseCredentials(String text) {
        int colon = text.indexOf(':');
        String user = colon < 0 ? "" : text.substring(0, colon);
        return new String[] {decodePercent(user), decodePercent(text.substring(colon + 1))};
    }

    private static String decodePercent(String text) {
        if (text.isEmpty()) {
            return null;
        }
        try {
            if (!LONE_PERCENT.matcher(text).find()) {
                return StandardCharsets.UTF_8
                        .newDecoder()
                        .decode(ByteBuffer.wrap(percentDecoded(text)))
                        .toString();
            }
        } catch (CharacterCodingException error) {
            // Reported below.
        }
        throw new IllegalArgumentException(
                "it has a % that begins no percent-encoded UTF-8 character (% itself is %25)");
    }

    private static byte[] percentDecoded(String text) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        for (int i = 0; i < bytes.length; i++) {
            if (bytes[i] == '%') {
                out.write(
                        Character.digit(bytes[i + 1], 16) << 4 | Character.digit(bytes[i + 2], 16));
                i += 2;
            } else {
                out.write(bytes[i]);
            }
        }
        return out.toByteArray();
    }
}
