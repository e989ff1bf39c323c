package busmq.spark.sink;

import busmq.spark.BusException;
import java.io.Serializable;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * The columns that say which message a row was made of: {@code queue} and {@code id} as the source
 * gave them, and {@code index} where one message makes several rows. {@code indexAt} is -1 without
 * it.
 */
record RowOriginColumns(int queueAt, int idAt, int indexAt) implements Serializable {
    /**
     * Throws BUSMQ_CONFIG where rows do not say it, or may go elsewhere when they come again.
     * {@code columns}: where rows go.
     */
    static RowOriginColumns of(StructType schema, SinkColumns columns) {
        List<String> names = Arrays.stream(schema.fields())
                .map(StructField::name)
                .map(name -> name.toLowerCase(Locale.ROOT))
                .toList();
        Map<String, Integer> places = IntStream.range(0, names.size())
                .boxed()
                .collect(Collectors.toMap(names::get, Function.identity(), (a, b) -> a));
        if (columns.topic() != null && columns.topic().partitionAt() < 0) {
            throw RealTimeMode.notExactlyOnceError(
                    "partitions of a topic that the sink chooses: rows that come again after the"
                        + " topic has grown would go to others. Give the rows a column partition");
        }
        if (columns.queueAt() >= 0) {
            throw RealTimeMode.notExactlyOnceError(
                    "a column that names where each row goes: column queue has to say where it"
                            + " comes from. Set option 'queue'");
        }
        if (!places.containsKey("queue") || !places.containsKey("id")) {
            throw RealTimeMode.notExactlyOnceError(
                    "rows that do not say which message they were made of: keep the columns queue"
                            + " and id of the source; the"
                            + " rows"
                            + " have:"
                            + " " + String.join(", ", schema.fieldNames()));
        }
        return new RowOriginColumns(
                places.get("queue"), places.get("id"), places.getOrDefault("index", -1));
    }

    /** The error for a row in which one of the columns is NULL. */
    static BusException nullError(String column) {
        return RealTimeMode.notExactlyOnceError(
                "a NULL in column '" + column + "': keep what the source gave");
    }
}
