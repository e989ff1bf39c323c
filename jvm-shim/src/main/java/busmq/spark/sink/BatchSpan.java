package busmq.spark.sink;

import busmq.spark.SharedPythonConstants;

/**
 * Which part of its sources a batch covers, as {@code writing/sink.py} writes it: a digest of its
 * offsets, its end offsets for people, and a digest of the checkpoint's place. Each is empty where
 * it is not known; spans of older versions have no checkpoint.
 */
record BatchSpan(String digest, String end, String checkpoint) {
    private static final String CHECKPOINT = SharedPythonConstants.text("spanCheckpoint");

    static BatchSpan parse(String text) {
        String[] parts = text.split(":", 2);
        String[] rest = (parts.length > 1 ? parts[1] : "").split(CHECKPOINT, 2);
        return new BatchSpan(parts[0], rest[0], rest.length > 1 ? rest[1] : "");
    }

    String text() {
        return digest + ":" + end + CHECKPOINT + checkpoint;
    }
}
