package busmq.spark.redis;

/**
 * The content of a MOVED or ASK error. {@code asking}: this one call goes there, with ASKING before
 * it; else the slot has moved for good.
 */
record Redirect(NodeAddress node, boolean asking) {
    /** Null for any other text. An empty host means the node that was {@code asked}. */
    static Redirect of(String text, String asked) {
        String[] words = text == null ? new String[0] : text.strip().split(" ");
        if (words.length < 3 || !(words[0].equals("MOVED") || words[0].equals("ASK"))) {
            return null;
        }
        int colon = words[2].lastIndexOf(':');
        String host = words[2].substring(0, colon);
        return new Redirect(
                new NodeAddress(
                        host.isEmpty() ? asked : host,
                        Integer.parseInt(words[2].substring(colon + 1))),
                words[0].equals("ASK"));
    }
}
