import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Scanner;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.LockSupport;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own client beside Spark, for peers.py: a command a line on stdin, an answer a line on stdout.
 *
 * <p>{@code create TOPIC PARTITIONS}, {@code delete TOPIC}, {@code fill TOPIC ROWS SIZE}, {@code count TOPIC},
 * {@code traffic FROM TO RATE COUNT SIZE}. Messages are those of notebooks/latency_clients.py.
 */
final class KafkaTool {
    private static final Pattern ORDER = Pattern.compile("\"n\":(\\d+),\"at\":(\\d+)");
    private static final long PATIENCE_NS = 60_000_000_000L;
    private final Properties settings = new Properties();
    private final Admin admin;
    private final KafkaProducer<byte[], byte[]> producer;

    private KafkaTool(String servers) {
        settings.put("bootstrap.servers", servers);
        admin = Admin.create(settings);
        producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    public static void main(String[] args) throws Exception {
        KafkaTool tool = new KafkaTool(args[0]);
        Scanner lines = new Scanner(System.in, StandardCharsets.UTF_8);
        while (lines.hasNextLine()) {
            System.out.println(tool.run(lines.nextLine().split(" ")));
        }
        System.exit(0);
    }

    private String run(String[] words) throws Exception {
        switch (words[0]) {
            case "create" -> create(words[1], Integer.parseInt(words[2]));
            case "delete" -> admin.deleteTopics(List.of(words[1])).all().get();
            case "fill" -> fill(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]));
            case "count" -> {
                return Long.toString(count(words[1]));
            }
            case "traffic" -> {
                return traffic(words[1], words[2], Integer.parseInt(words[3]), Integer.parseInt(words[4]), Integer.parseInt(words[5]));
            }
            default -> throw new IllegalArgumentException(words[0]);
        }
        return "0";
    }

    /**
     * Returns when the topic can be written. A producer that begins before may have its first batch refused and its second one taken, and then
     * the first is out of order for ever.
     */
    private void create(String topic, int partitions) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
        while (producer.partitionsFor(topic).size() < partitions) {
            Thread.sleep(10);
        }
        count(topic);
    }

    private void fill(String topic, int rows, int size) {
        for (int n = 1; n <= rows; n++) {
            send(topic, order(n, System.nanoTime(), size));
        }
        producer.flush();
    }

    private void send(String topic, byte[] value) {
        producer.send(new ProducerRecord<>(topic, value), (sent, error) -> {
            if (error != null) {
                error.printStackTrace();
                Runtime.getRuntime().halt(1); // whoever asked sees that nothing comes
            }
        });
    }

    private static byte[] order(int n, long at, int size) {
        byte[] head = ("{\"n\":" + n + ",\"at\":" + at + ",\"total\":" + (n % 900 + 10) + ".50,\"of\":\"").getBytes(StandardCharsets.US_ASCII);
        byte[] value = Arrays.copyOf(head, Math.max(size, head.length + 2));
        Arrays.fill(value, head.length, value.length - 2, (byte) '.');
        value[value.length - 2] = '"';
        value[value.length - 1] = '}';
        return value;
    }

    private List<TopicPartition> partitions(String topic) {
        return producer.partitionsFor(topic).stream().map(each -> new TopicPartition(topic, each.partition())).toList();
    }

    private KafkaConsumer<byte[], byte[]> consumer() {
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private long count(String topic) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions(topic));
            return ends.values().stream().mapToLong(Long::longValue).sum();
        }
    }

    /** Microseconds from send to arrival of each message, as a list in JSON; fewer than expected if none comes for long. */
    private String traffic(String from, String to, int rate, int count, int size) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(partitions(to));
            consumer.seekToEnd(consumer.assignment());
            consumer.assignment().forEach(consumer::position);
            CompletableFuture<Void> sending = CompletableFuture.runAsync(() -> sendAtRate(from, rate, count, size));
            List<Long> took = arrivals(consumer, count);
            sending.join();
            return took.toString();
        }
    }

    private void sendAtRate(String topic, int rate, int count, int size) {
        long began = System.nanoTime();
        for (int n = 1; n <= count; n++) {
            LockSupport.parkNanos(began + n * 1_000_000_000L / rate - System.nanoTime());
            send(topic, order(n, System.nanoTime(), size));
        }
    }

    private static List<Long> arrivals(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<Long> took = new ArrayList<>();
        BitSet seen = new BitSet(count + 1);
        long last = System.nanoTime();
        while (took.size() < count && System.nanoTime() - last < PATIENCE_NS) {
            for (var row : consumer.poll(Duration.ofMillis(100))) {
                last = System.nanoTime();
                Matcher found = ORDER.matcher(new String(row.value(), StandardCharsets.US_ASCII));
                found.find();
                int n = Integer.parseInt(found.group(1));
                if (!seen.get(n)) {
                    seen.set(n);
                    took.add((last - Long.parseLong(found.group(2))) / 1000);
                }
            }
        }
        return took;
    }
}
