package busmq.spark;

import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.sql.types.StructType;

/** Checks of the names of columns. */
public final class ColumnNames {
    private ColumnNames() {}

    /**
     * Throws BUSMQ_CONFIG where two columns have one name; the case of letters does not count, as
     * in Spark.
     */
    public static void refuseEqual(StructType schema) {
        Map<String, String> met = new HashMap<>();
        for (String name : schema.fieldNames()) {
            String first = met.putIfAbsent(name.toLowerCase(Locale.ROOT), name);
            if (first != null) {
                throw BusException.configError("columns " + PyText.repr(first) + " and "
                        + PyText.repr(name) + " " + SharedPythonConstants.text("equalNamesReason"));
            }
        }
    }
}
