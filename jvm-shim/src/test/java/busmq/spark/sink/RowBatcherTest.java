package busmq.spark.sink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import busmq.spark.BusException;
import busmq.spark.ErrorKind;
import java.io.InterruptedIOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.RepetitionInfo;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * Rows that gather while a call is under way. The other side is a list per queue; what it takes,
 * and when, is up to each test.
 */
@Timeout(30)
class RowBatcherTest {
    private final Map<String, List<Integer>> arrived = new HashMap<>();
    private final List<Integer> rounds = Collections.synchronizedList(new ArrayList<>());
    private final Semaphore calls = new Semaphore(0);
    private final CountDownLatch ended = new CountDownLatch(1);
    private volatile boolean gated;
    private volatile int room = Integer.MAX_VALUE;
    private Random partial;
    private RowBatcher made;

    private final RowBatcher.Target target = new RowBatcher.Target() {
        @Override
        public int[] writeChunks(List<QueueWriteBuffer> buffers) {
            rounds.add(buffers.stream().mapToInt(buffer -> buffer.chunk.size()).sum());
            if (gated) {
                calls.acquireUninterruptibly();
            }
            return buffers.stream().mapToInt(RowBatcherTest.this::take).toArray();
        }

        @Override
        public long maxsize(QueueWriteBuffer buffer) {
            return 10;
        }
    };

    private int take(QueueWriteBuffer buffer) {
        int most = partial == null ? room : partial.nextInt(4);
        int count = Math.min(most, buffer.chunk.size());
        List<Integer> into = arrived.computeIfAbsent(buffer.queue, name -> new ArrayList<>());
        List<Integer> numbers = buffer.chunk.stream()
                .map(value -> ByteBuffer.wrap(value).getInt())
                .toList();
        assertTrue(buffer.chunkOrigins.isEmpty()
                || buffer.chunkOrigins.stream()
                        .map(origin -> (int) origin.id())
                        .toList()
                        .equals(numbers));
        assertEquals(buffer.queue.matches("q[1-9]"), !buffer.chunkOrigins.isEmpty());
        buffer.chunk
                .subList(0, count)
                .forEach(value -> into.add(ByteBuffer.wrap(value).getInt()));
        return count;
    }

    private RowBatcher open(boolean onlyFullChunks, long fullTimeoutMs) {
        made = new RowBatcher(target, fullTimeoutMs, onlyFullChunks, ended::countDown);
        return made;
    }

    @AfterEach
    void close() throws InterruptedException {
        calls.release(1_000_000);
        made.close();
        assertTrue(ended.await(20, TimeUnit.SECONDS));
    }

    private static byte[] value(int number) {
        return ByteBuffer.allocate(4).putInt(number).array();
    }

    private void awaitRounds(int count) throws InterruptedException {
        while (rounds.size() < count) {
            Thread.sleep(1); // until the other thread has come so far
        }
    }

    private int sent() {
        return List.copyOf(rounds).stream().mapToInt(size -> size).sum();
    }

    private static List<Integer> numbers(int count) {
        return IntStream.range(0, count).boxed().toList();
    }

    @Test
    void aSingleRowIsSentAtOnceWithoutAFlush() throws Exception {
        RowBatcher rows = open(false, 0);
        rows.add("q", value(0), null);
        awaitRounds(1);
        rows.flush();
        assertEquals(List.of(1), rounds);
    }

    @Test
    void whatGathersWhileACallIsUnderWayIsTheNextCall() throws Exception {
        gated = true;
        RowBatcher rows = open(false, 0);
        rows.add("q", value(0), null);
        awaitRounds(1);
        for (int i = 1; i < 500; i++) {
            rows.add("q", value(i), null);
        }
        calls.release(2);
        rows.flush();
        assertEquals(List.of(1, 499), rounds);
        assertEquals(numbers(500), arrived.get("q"));
    }

    @Test
    void stagedRowsWaitForFullChunksAndTheRestForTheFlush() throws Exception {
        RowBatcher rows = open(true, 0);
        for (int i = 0; i < 2500; i++) {
            rows.add(i % 2 == 0 ? "even" : "odd", value(i / 2), null);
        }
        while (sent() < 2000) {
            Thread.sleep(1);
        }
        assertTrue(rounds.stream().allMatch(size -> size % 1000 == 0), rounds::toString);
        rows.flush();
        assertEquals(2500, sent());
        assertEquals(numbers(1250), arrived.get("even"));
        assertEquals(numbers(1250), arrived.get("odd"));
    }

    @Test
    void stagedRowsOfManyQueuesTravelQueueByQueue() throws Exception {
        RowBatcher rows = open(true, 0);
        for (int i = 0; i < 50_000; i++) {
            rows.add("queue" + i % 1000, value(i / 1000), null);
        }
        assertEquals(List.of(), rounds);
        rows.flush();
        assertEquals(16, rounds.size()); // 64 queues in each
        assertEquals(numbers(50), arrived.get("queue7"));
    }

    @RepeatedTest(10)
    void everyQueueKeepsItsOrderHoweverLittleIsTakenAtATime(RepetitionInfo seed) throws Exception {
        partial = new Random(seed.getCurrentRepetition());
        RowBatcher rows = open(seed.getCurrentRepetition() % 2 == 0, 60_000);
        int[] next = new int[5];
        Random random = new Random(seed.getCurrentRepetition());
        for (int i = 0; i < 50; i++) {
            int queue = random.nextInt(next.length);
            // Rows of q0 have no origin.
            rows.add(
                    "q" + queue,
                    value(next[queue]),
                    queue == 0 ? null : new RowOrigin("life", next[queue], 0));
            next[queue]++;
        }
        rows.flush();
        for (int queue = 0; queue < next.length; queue++) {
            assertEquals(numbers(next[queue]), arrived.getOrDefault("q" + queue, List.of()));
        }
    }

    @Test
    void whoAddsFasterThanRedisStoresHasToWait() throws Exception {
        gated = true;
        RowBatcher rows = open(false, 0);
        for (int i = 0; i < RowBatcher.MOST_ROWS; i++) {
            rows.add("q", value(i), null);
        }
        Thread adder = new Thread(() -> {
            try {
                rows.add("q", value(RowBatcher.MOST_ROWS), null);
            } catch (InterruptedIOException error) {
                throw new IllegalStateException(error);
            }
        });
        adder.start();
        while (adder.getState() != Thread.State.WAITING) {
            Thread.sleep(1);
        }
        gated = false;
        calls.release(1);
        adder.join();
        rows.flush();
        assertEquals(numbers(RowBatcher.MOST_ROWS + 1), arrived.get("q"));
    }

    @Test
    void aQueueThatStaysFullFailsWithWhatIsLeftOfItsChunk() throws Exception {
        room = 0;
        RowBatcher rows = open(false, 20);
        rows.add("q", value(0), null);
        BusException error = assertThrows(BusException.class, rows::flush);
        assertTrue(
                error.getMessage()
                        .startsWith(
                                "[BUSMQ_QUEUE_FULL] queue 'q' holds its maxsize of 10 messages for"
                                        + " 0.02 s; 1 rows are not stored."),
                error.getMessage());
        assertThrows(BusException.class, () -> rows.add("q", value(1), null));
    }

    @Test
    void whatEndsTheSendingIsThrownToWhoeverAddsOrFlushesNext() throws Exception {
        made = new RowBatcher(
                new RowBatcher.Target() {
                    @Override
                    public int[] writeChunks(List<QueueWriteBuffer> buffers) {
                        throw BusException.of(
                                ErrorKind.SERVER_REFUSED, "url", "redis://x", "reason", "NO");
                    }

                    @Override
                    public long maxsize(QueueWriteBuffer buffer) {
                        return 0;
                    }
                },
                0,
                false,
                ended::countDown);
        made.add("q", value(0), null);
        assertEquals(
                ErrorKind.SERVER_REFUSED,
                assertThrows(BusException.class, made::flush).kind());
        assertEquals(
                1,
                ended.getCount(),
                "the end comes after the adding thread has seen the error and closed");
    }

    @Test
    void rowsThatCouldNotBePushedAreTriedAgainThoughNoOtherRowComes() throws Exception {
        CountDownLatch stored = new CountDownLatch(1);
        made = new RowBatcher(
                new RowBatcher.Target() {
                    private int tries;

                    @Override
                    public int[] writeChunks(List<QueueWriteBuffer> buffers) {
                        if (tries++ == 0) {
                            throw BusException.of(
                                    ErrorKind.LINK_LOST, "url", "redis://x", "reason", "away");
                        }
                        stored.countDown();
                        return target.writeChunks(buffers);
                    }

                    @Override
                    public long maxsize(QueueWriteBuffer buffer) {
                        return 0;
                    }
                },
                0,
                false,
                ended::countDown);
        made.add("q", value(0), null);
        assertTrue(stored.await(20, TimeUnit.SECONDS));
        while (made.hasFailedWith(ErrorKind.LINK_LOST)) {
            Thread.sleep(1); // until it is forgotten
        }
        made.add("q", value(1), null);
        made.flush();
        assertEquals(numbers(2), arrived.get("q"));
    }

    @Test
    void nothingIsSentAfterTheClose() throws Exception {
        gated = true;
        RowBatcher rows = open(false, 0);
        rows.add("q", value(0), null);
        awaitRounds(1);
        rows.add("q", value(1), null);
        rows.close();
        calls.release(100);
        assertTrue(ended.await(20, TimeUnit.SECONDS));
        assertEquals(numbers(1), arrived.get("q"));
    }

    @Test
    void aTaskThatIsStoppedDoesNotWaitForRedis() throws Exception {
        gated = true;
        RowBatcher rows = open(false, 0);
        rows.add("q", value(0), null);
        Thread.currentThread().interrupt();
        assertThrows(InterruptedIOException.class, rows::flush);
        assertTrue(Thread.interrupted());
    }
}
