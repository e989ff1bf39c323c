package busmq.spark.core;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.RepetitionInfo;
import org.junit.jupiter.api.Test;

/** The cases of tests/core/test_tasks.py. */
class WorkSplitterTest {
    @RepeatedTest(200)
    void aCapIsUsedUpAndNobodyGetsLessThanAnotherUnlessItWantsNoMore(RepetitionInfo round) {
        Random random = new Random(round.getCurrentRepetition());
        Map<String, Long> available = new LinkedHashMap<>();
        IntStream.range(0, random.nextInt(12))
                .forEach(i -> available.put("q" + i, (long) random.nextInt(1000)));
        long most = 1 + random.nextInt(5000);
        Map<String, Long> given = WorkSplitter.shareOut(available, most);
        assertEquals(Math.min(most, sum(available)), sum(given));
        long largest = given.isEmpty() ? 0 : Collections.max(given.values());
        given.forEach((queue, rows) -> {
            assertTrue(rows >= 0 && rows <= available.get(queue));
            assertTrue(rows.equals(available.get(queue)) || rows >= largest - 1);
        });
    }

    @Test
    void aCapBelowTheNumberOfQueuesGoesToThoseWithTheMost() {
        assertEquals(
                Map.of("a", 0L, "b", 0L, "c", 1L, "d", 1L),
                WorkSplitter.shareOut(Map.of("a", 5L, "b", 1L, "c", 9L, "d", 7L), 2));
    }

    @RepeatedTest(100)
    void aSplitRangeIsTheRangeInOrderInEvenParts(RepetitionInfo round) {
        Random random = new Random(round.getCurrentRepetition());
        long first = 1 + random.nextInt(1_000_000);
        long rows = 1 + random.nextInt(3000);
        long parts = 1 + random.nextInt(50);
        List<Range> found =
                WorkSplitter.split(new Range("q", "b", first, first + rows - 1, 0), parts);
        assertEquals(Math.min(parts, rows), found.size());
        long next = first;
        for (Range range : found) {
            assertEquals(next, range.first());
            next = range.last() + 1;
        }
        assertEquals(first + rows, next);
        List<Long> sizes = found.stream().map(Range::rows).toList();
        assertTrue(Collections.max(sizes) - Collections.min(sizes) <= 1);
    }

    @RepeatedTest(100)
    void tasksHoldEveryIdOnceAndKeepTheOrderOfEachQueue(RepetitionInfo round) {
        Random random = new Random(round.getCurrentRepetition());
        List<Range> parts = IntStream.range(0, 1 + random.nextInt(60))
                .mapToObj(i -> new Range("q" + i, "b", 11, 11 + random.nextInt(2500), 0))
                .toList();
        Long most = random.nextBoolean() ? null : (long) (1 + random.nextInt(500));
        List<List<Range>> found = WorkSplitter.tasks(
                parts, random.nextBoolean() ? null : (long) (1 + random.nextInt(80)), most);
        assertTrue(
                ids(parts).equals(ids(found.stream().flatMap(List::stream).toList())),
                "the ids of each queue, once and in order");
        assertTrue(found.stream().noneMatch(List::isEmpty));
        assertTrue(most == null
                || found.stream().flatMap(List::stream).allMatch(range -> range.rows() <= most));
    }

    /** Parts of 999 rows were packed behind parts of 1,000. */
    @Test
    void thePartsOfAQueueThatWasCutStayInTheirOrderAmongManySmallOnes() {
        List<Range> small = IntStream.range(0, 40).mapToObj(i -> of(1, "q" + i)).toList();
        List<Range> all = new ArrayList<>(small);
        all.add(of(2999, "cut"));
        all.addAll(small);
        List<Long> firsts = WorkSplitter.tasks(all, null, 1000L).stream()
                .flatMap(List::stream)
                .filter(range -> range.queue().equals("cut"))
                .map(Range::first)
                .toList();
        assertEquals(List.of(1L, 1000L, 2000L), firsts);
    }

    @Test
    void withoutOptionsEveryQueueIsOneTask() {
        assertEquals(
                List.of(10L, 1000L),
                sizes(WorkSplitter.tasks(List.of(of(10, "a"), of(1000, "b")), null, null)));
    }

    @Test
    void minPartitionsCutsTheLargeQueueAndLeavesTheSmallOne() {
        assertEquals(
                List.of(10L, 98L, 99L, 99L, 99L, 98L, 99L, 99L, 99L),
                sizes(WorkSplitter.tasks(List.of(of(10, "a"), of(790, "b")), 8L, null)));
    }

    @Test
    void minPartitionsBelowTheNumberOfQueuesChangesNothing() {
        assertEquals(
                List.of(5L, 5L),
                sizes(WorkSplitter.tasks(List.of(of(5, "a"), of(5, "b")), 2L, null)));
    }

    @Test
    void maxMessagesPerPartitionCutsIntoPartsNoLarger() {
        assertEquals(
                List.of(3L, 3L, 4L), sizes(WorkSplitter.tasks(List.of(of(10, "q")), null, 4L)));
    }

    @Test
    void ofTwoOptionsTheOneWithMorePartsCounts() {
        assertEquals(
                Collections.nCopies(10, 10L),
                sizes(WorkSplitter.tasks(List.of(of(100, "q")), 2L, 10L)));
        assertEquals(
                Collections.nCopies(20, 5L),
                sizes(WorkSplitter.tasks(List.of(of(100, "q")), 20L, 10L)));
    }

    @Test
    void manySmallQueuesShareTasksSoThatEachIsWorthStarting() {
        List<Range> ranges = IntStream.rangeClosed(0, WorkSplitter.MAX_UNPACKED_RANGES)
                .mapToObj(i -> of(100, "q" + i))
                .toList();
        assertEquals(
                List.of(1000L, 1000L, 1000L, 300L), sizes(WorkSplitter.tasks(ranges, null, null)));
    }

    @Test
    void upToAFewDozenQueuesEachHasATaskOfItsOwn() {
        List<Range> ranges = IntStream.range(0, WorkSplitter.MAX_UNPACKED_RANGES)
                .mapToObj(i -> of(1, "q" + i))
                .toList();
        assertEquals(
                WorkSplitter.MAX_UNPACKED_RANGES,
                WorkSplitter.tasks(ranges, null, null).size());
    }

    @Test
    void aLargeQueueAmongManySmallOnesKeepsItsOwnTask() {
        List<Range> ranges = new ArrayList<>(
                IntStream.range(0, 40).mapToObj(i -> of(1, "q" + i)).toList());
        ranges.add(of(WorkSplitter.ROWS_PER_PACKED_TASK, "large"));
        ranges.addAll(IntStream.range(0, 40).mapToObj(i -> of(1, "r" + i)).toList());
        assertTrue(WorkSplitter.tasks(ranges, null, null).stream()
                .anyMatch(task -> task.size() == 1 && task.get(0).queue().equals("large")));
    }

    @Test
    void queuesAreDealtOutToAsManyReadersAsThereAreSlotsAndNoneIsLeftOut() {
        assertEquals(
                List.of(List.of("a", "c", "e"), List.of("b", "d")),
                WorkSplitter.queuesPerReader(List.of("a", "b", "c", "d", "e"), 2));
        assertEquals(
                List.of(List.of("a"), List.of("b")),
                WorkSplitter.queuesPerReader(List.of("a", "b"), 8));
        assertEquals(List.of(), WorkSplitter.queuesPerReader(List.of(), 8));
    }

    private static Range of(long rows, String name) {
        return new Range(name, "b", 1, rows, 0);
    }

    private static long sum(Map<String, Long> rows) {
        return rows.values().stream().mapToLong(Long::longValue).sum();
    }

    private static List<Long> sizes(List<List<Range>> found) {
        return found.stream()
                .map(task -> task.stream().mapToLong(Range::rows).sum())
                .toList();
    }

    private static Map<String, List<Long>> ids(List<Range> ranges) {
        Map<String, List<Long>> found = new LinkedHashMap<>();
        for (Range range : ranges) {
            for (long id = range.first(); id <= range.last(); id++) {
                found.computeIfAbsent(range.queue(), queue -> new ArrayList<>()).add(id);
            }
        }
        return found;
    }
}
