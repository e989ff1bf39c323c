package busmq.spark;

/** Text as Python words it, so that both implementations say the same. */
public final class PyText {
    private PyText() {}

    /** A string as Python's {@code repr} shows it. */
    public static String repr(String text) {
        char quote = text.indexOf('\'') >= 0 && text.indexOf('"') < 0 ? '"' : '\'';
        StringBuilder out = new StringBuilder().append(quote);
        text.codePoints().forEach(point -> {
            switch (point) {
                case '\n' -> out.append("\\n");
                case '\r' -> out.append("\\r");
                case '\t' -> out.append("\\t");
                case '\\' -> out.append("\\\\");
                default -> {
                    if (point == quote) {
                        out.append('\\').append(quote);
                    } else if (isPrintable(point)) {
                        out.appendCodePoint(point);
                    } else {
                        out.append(String.format(
                                point < 0x100 ? "\\x%02x" : point < 0x10000 ? "\\u%04x" : "\\U%08x",
                                point));
                    }
                }
            }
        });
        return out.append(quote).toString();
    }

    private static boolean isPrintable(int point) {
        return switch (Character.getType(point)) {
            case Character.CONTROL,
                    Character.FORMAT,
                    Character.SURROGATE,
                    Character.PRIVATE_USE,
                    Character.UNASSIGNED,
                    Character.LINE_SEPARATOR,
                    Character.PARAGRAPH_SEPARATOR -> false;
            case Character.SPACE_SEPARATOR -> point == ' ';
            default -> true;
        };
    }
}
