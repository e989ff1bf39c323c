package busmq.spark.source;

import org.apache.spark.sql.connector.read.streaming.Offset;

/** The text of an offset; two are equal when their texts are. */
final class BusOffset extends Offset {
    private final String json;

    BusOffset(String json) {
        this.json = json;
    }

    @Override
    public String json() {
        return json;
    }
}
