package busmq.spark.sink;

/**
 * Which message a row was made of.
 *
 * @param born the life of the queue that the message was read from; unique for ever
 * @param index which of the rows that were made of it, from 0
 */
record RowOrigin(String born, long id, int index) {
    boolean isAfter(RowOrigin other) {
        return id > other.id || (id == other.id && index > other.index);
    }
}
