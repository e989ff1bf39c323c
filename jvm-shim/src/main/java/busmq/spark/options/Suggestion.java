package busmq.spark.options;

import java.util.Collection;

/**
 * The similarity of two words, for "did you mean": the measure of Python's difflib, so that both
 * engines propose the same name.
 */
final class Suggestion {
    private static final double LEAST_RATIO = 0.6;

    private Suggestion() {}

    /** The word most like this one, or null when none is like it. */
    static String nearest(String word, Collection<String> words) {
        String best = null;
        double most = LEAST_RATIO;
        for (String other : words) {
            double found = ratio(other, word);
            if (found > most || (found == most && (best == null || other.compareTo(best) > 0))) {
                most = found;
                best = other;
            }
        }
        return best;
    }

    private static double ratio(String a, String b) {
        return a.isEmpty() && b.isEmpty()
                ? 1
                : 2.0 * countCommonCharacters(a, b) / (a.length() + b.length());
    }

    private static int countCommonCharacters(String a, String b) {
        int length = 0;
        int startA = 0;
        int startB = 0;
        for (int i = 0; i < a.length(); i++) {
            for (int j = 0; j < b.length(); j++) {
                int same = 0;
                while (i + same < a.length()
                        && j + same < b.length()
                        && a.charAt(i + same) == b.charAt(j + same)) {
                    same++;
                }
                if (same > length) {
                    length = same;
                    startA = i;
                    startB = j;
                }
            }
        }
        return length == 0
                ? 0
                : length
                        + countCommonCharacters(a.substring(0, startA), b.substring(0, startB))
                        + countCommonCharacters(
                                a.substring(startA + length), b.substring(startB + length));
    }
}
