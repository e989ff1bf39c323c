package busmq.spark.store;

import busmq.spark.core.RandomToken;
import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;

/**
 * The holder of a lease: a token that names its host and process, so that a holder that died on
 * this machine is replaced at once. The Python package (redis_io/lease_token.py) reads and writes
 * the same.
 */
public final class LeaseHolderToken {
    /** Of the fields of proc(5) after the program's name: its state, and when it started. */
    private static final int STATE_FIELD = 0;

    private static final int START_TIME_FIELD = 19;

    private LeaseHolderToken() {}

    /** A new token for this process. */
    public static String myToken() {
        return RandomToken.next() + "|" + thisMachine() + "|"
                + processName(ProcessHandle.current().pid());
    }

    /**
     * Whether the holder is known to be dead: it ran on this machine, and it or the driver that
     * started it is gone.
     */
    public static boolean isDead(String token) {
        String[] parts = token.split("\\|", -1);
        return parts.length > 1
                && parts[1].equals(thisMachine())
                && Arrays.stream(parts, 2, parts.length).anyMatch(process -> !isAlive(process));
    }

    /** Return a description of a holder, for people. */
    public static String describeHolder(String token) {
        String[] parts = token.split("\\|", -1);
        String process = parts.length > 2 ? parts[2].replaceFirst("\\..*", "") : "";
        String where = parts.length > 1 ? parts[1] : "";
        return "process " + (process.isEmpty() ? "unknown" : process) + " of "
                + (where.equals(thisMachine()) ? "this machine" : "machine " + where);
    }

    /** Whether the holder runs on this machine. */
    public static boolean isOnThisMachine(String token) {
        return token.contains("|" + thisMachine() + "|");
    }

    private static boolean isAlive(String process) {
        String pid = process.replaceFirst("\\..*", "");
        return pid.matches("\\d{1,18}") && processName(Long.parseLong(pid)).equals(process);
    }

    private static String thisMachine() {
        try {
            String boot = Files.readString(
                            Path.of("/proc/sys/kernel/random/boot_id"), StandardCharsets.US_ASCII)
                    .strip();
            return boot + "/" + Files.readSymbolicLink(Path.of("/proc/self/ns/pid"));
        } catch (IOException error) {
            return host();
        }
    }

    private static String host() {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException error) {
            return "localhost";
        }
    }

    /**
     * Names a process, and differs from that of a later process with the same pid; empty when there
     * is no such process.
     */
    private static String processName(long pid) {
        try {
            String stat = Files.readString(
                    Path.of("/proc/" + pid + "/stat"), StandardCharsets.ISO_8859_1);
            String[] fields = stat.substring(stat.lastIndexOf(')') + 1).strip().split("\\s+");
            // A zombie is dead.
            return "ZX".contains(fields[STATE_FIELD]) ? "" : pid + "." + fields[START_TIME_FIELD];
        } catch (IOException error) {
            return ProcessHandle.of(pid).isPresent() ? String.valueOf(pid) : "";
        }
    }
}
