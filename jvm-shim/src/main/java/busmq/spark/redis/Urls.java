package busmq.spark.redis;

import busmq.spark.BusException;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;

/**
 * Text to servers, as {@code redis_io/urls.py}: {@code redis://[user:password@]host[:port]}, {@code rediss://} for TLS, several separated by
 * commas. The database number is ignored, and a user part without a colon is the password. Errors repeat nothing of a URL: a password that
 * breaks it may stand anywhere in it.
 */
final class Urls {
    private Urls() {
    }

    /** The servers of a comma list; {@code login} holds for every URL that has no credentials of its own. */
    static List<RedisServerAddress> parse(String urls, RedisServerAddress login, int defaultPort) {
        List<String> given = Arrays.stream(urls.split(",")).map(String::strip).filter(url -> !url.isEmpty()).toList();
        if (given.isEmpty()) {
            throw BusException.configError("redis.url is empty; expected redis://host:port, or several separated by commas");
        }
        List<RedisServerAddress> servers = new ArrayList<>();
        for (String url : given) {
            try {
                servers.add(parseServer(url, login, defaultPort));
            } catch (IllegalArgumentException bad) {
                String which = given.size() > 1 ? "URL " + (servers.size() + 1) + " of " + given.size() + " in redis.url" : "redis.url";
                throw BusException.configError(which + ": " + bad.getMessage() + "; expected redis://[user:password@]host[:port] or rediss://…. "
                        + "In a password percent-encode , @ / ? # [ ] and %");
            }
        }
        return servers;
    }

    private static RedisServerAddress parseServer(String url, RedisServerAddress login, int defaultPort) {
        int colon = url.indexOf(':');
        String scheme = colon < 0 ? "" : url.substring(0, colon).toLowerCase(Locale.ROOT);
        if (scheme.equals("unix")) {
            throw new IllegalArgumentException("format(\"busmq-realtime\") speaks to no unix socket, as format(\"busmq\") does");
        }
        if (!scheme.equals("redis") && !scheme.equals("rediss") || !url.startsWith("//", colon + 1)) {
            throw new IllegalArgumentException("it does not begin with a known scheme");
        }
        String rest = url.substring(colon + 3);
        String place = rest.split("[/?#]", 2)[0];
        if (rest.indexOf('@', place.length()) >= 0) {
            throw new IllegalArgumentException("it has an @ behind its address");
        }
        int at = place.lastIndexOf('@');
        String[] credentials = parseCredentials(at < 0 ? "" : place.substring(0, at));
        String user = credentials[0];
        String password = credentials[1];
        if (password == null) {
            user = user == null ? login.user() : user;
            password = login.password();
        }
        String address = place.substring(at + 1);
        int end = address.startsWith("[") ? address.indexOf(']') + 1 : address.contains(":") ? address.indexOf(':') : address.length();
        if (address.startsWith("[") && end == 0) {
            throw new IllegalArgumentException("it is not a URL");
        }
        String host = address.substring(0, end).replaceAll("^\\[|]$", "").toLowerCase(Locale.ROOT);
        int port = parsePort(address.substring(end), defaultPort);
        if (host.isEmpty()) {
            throw new IllegalArgumentException("it has no host");
        }
        return new RedisServerAddress(host, port, scheme.equals("rediss"), user, password, login.trust());
    }

    private static int parsePort(String text, int defaultPort) {
        String digits = text.startsWith(":") ? text.substring(1) : text;
        if (digits.isEmpty()) {
            return defaultPort;
        }
        if (text.equals(digits) || !digits.matches("[0-9]{1,5}") || Integer.parseInt(digits) > 65535) {
            throw new IllegalArgumentException("its port is not a number from 1 to 65535");
        }
        return Integer.parseInt(digits) == 0 ? defaultPort : Integer.parseInt(digits);
    }

    private static String[] parseCredentials(String text) {
        int colon = text.indexOf(':');
        String user = colon < 0 ? "" : text.substring(0, colon);
        return new String[] {percentDecode(user), percentDecode(text.substring(colon + 1))};
    }

    private static String percentDecode(String text) {
        if (text.isEmpty()) {
            return null;
        }
        try {
            return URLDecoder.decode(text.replace("+", "%2B"), StandardCharsets.UTF_8);
        } catch (IllegalArgumentException error) {
            return text; // a lone %: taken as it stands, as Python does
        }
    }
}
