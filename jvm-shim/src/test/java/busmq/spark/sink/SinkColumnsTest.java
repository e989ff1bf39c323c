package busmq.spark.sink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.params.provider.Arguments.arguments;

import busmq.spark.BusException;
import java.util.stream.Stream;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** What rows the sink takes: the cases and the words of {@code tests/spark/test_sink_schema.py}. */
class SinkColumnsTest {
    private static final DataType S = DataTypes.StringType;
    private static final DataType B = DataTypes.BinaryType;
    private static final DataType L = DataTypes.LongType;

    private static StructType schema(Object... columns) {
        StructType found = new StructType();
        for (int i = 0; i < columns.length; i += 2) {
            found = found.add((String) columns[i], (DataType) columns[i + 1]);
        }
        return found;
    }

    @ParameterizedTest
    @ValueSource(strings = {"value", "VALUE"})
    void aValueIsTextOrBytesInWhateverCaseItsColumnIsWritten(String name) {
        assertEquals(
                new SinkColumns(name, 0, true, null, -1, "q", null),
                SinkColumns.of(schema(name, S), "q", null));
        assertEquals(
                new SinkColumns(name, 0, false, null, -1, "q", null),
                SinkColumns.of(schema(name, B), "q", null));
    }

    @Test
    void theQueueComesFromItsColumn() {
        assertEquals(
                new SinkColumns("value", 1, true, "Queue", 0, null, null),
                SinkColumns.of(schema("Queue", S, "value", S), null, null));
    }

    @Test
    void theOptionWinsOverTheColumnAsTheTopicOfKafkaDoes() {
        assertEquals(
                new SinkColumns("value", 1, true, null, -1, "q", null),
                SinkColumns.of(schema("queue", S, "value", S), "q", null));
    }

    @Test
    void rowsOfTheSourceCanBeWrittenAsTheyAre() {
        StructType rows = schema(
                "queue", S, "id", L, "value", B, "source", S, "index", DataTypes.IntegerType);
        assertEquals(
                new SinkColumns("value", 2, false, "queue", 0, null, null),
                SinkColumns.of(rows, null, null));
    }

    static Stream<Arguments> misfits() {
        return Stream.of(
                arguments(
                        schema("queue", S), "q", "column 'value' is missing; the rows have: queue"),
                arguments(schema(), "q", "column 'value' is missing; the rows have: no columns"),
                arguments(
                        schema("value", DataTypes.IntegerType),
                        "q",
                        "column 'value' is int; expected string or binary; use"
                                + " to_json(struct(...)) for a structured value"),
                arguments(
                        schema("value", DataTypes.createArrayType(B)),
                        "q",
                        "column 'value' is array<binary>; expected string or binary; use"
                                + " to_json(struct(...)) for a structured value"),
                arguments(
                        schema("value", S, "queue", B),
                        null,
                        "column 'queue' is binary; expected string"),
                arguments(
                        schema("value", S, "id", S), "q", "column 'id' is string; expected bigint"),
                arguments(
                        schema("value", S, "index", L),
                        "q",
                        "column 'index' is bigint; expected int"),
                arguments(
                        schema("value", S, "key", S),
                        "q",
                        "column 'key' chooses a partition of a topic, and these rows go to queues;"
                                + " leave it out, or name a topic"),
                arguments(
                        schema("value", S),
                        null,
                        "no queue is named: set option 'queue', or give the rows a column queue;"
                                + " for a topic option or column topic"));
    }

    @ParameterizedTest
    @MethodSource("misfits")
    void rowsThatDoNotFitAreRefusedByTheNameOfTheirColumn(
            StructType found, String queue, String reason) {
        BusException error =
                assertThrows(BusException.class, () -> SinkColumns.of(found, queue, null));
        assertEquals("[BUSMQ_CONFIG] " + reason, error.getMessage());
    }

    @Test
    void aNullIsRefusedWithItsColumnAndItsRow() {
        SinkColumns columns = SinkColumns.of(schema("queue", S, "value", S), null, null);
        columns.checkNotNull(false, false, 1);
        String rest = " is NULL in row 7 of its task; a message cannot be. Filter them, or use"
                + " coalesce()";
        BusException value =
                assertThrows(BusException.class, () -> columns.checkNotNull(true, true, 7));
        assertEquals("[BUSMQ_MESSAGE_REFUSED] column 'value'" + rest, value.getMessage());
        BusException queue =
                assertThrows(BusException.class, () -> columns.checkNotNull(false, true, 7));
        assertEquals("[BUSMQ_MESSAGE_REFUSED] column 'queue'" + rest, queue.getMessage());
    }

    @Test
    void anEmptyQueueNameIsRefused() {
        SinkColumns columns = SinkColumns.of(schema("queue", S, "value", S), null, null);
        BusException error = assertThrows(BusException.class, () -> columns.checkQueueName(""));
        assertEquals(
                "[BUSMQ_MESSAGE_REFUSED] column 'queue' is empty in some rows; expected the name"
                        + " of a queue",
                error.getMessage());
    }
}
