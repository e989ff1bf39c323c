package busmq.spark.redis;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;

class SlotMapTest {
    private static final NodeAddress A = new NodeAddress("a", 1);
    private static final NodeAddress ASKED = new NodeAddress("asked", 2);

    private static List<Object> range(long first, long last, String host, long port) {
        return List.of(first, last, List.of(host.getBytes(StandardCharsets.UTF_8), port));
    }

    private static SlotMap map() {
        return SlotMap.parse(List.of(range(0, 99, "a", 1), range(200, 16383, "", 2)), "asked");
    }

    @Test
    void aSlotHasTheMasterOfItsRangeOrNone() {
        assertEquals(A, map().owner(0));
        assertEquals(A, map().owner(99));
        assertNull(map().owner(100));
        assertEquals(
                ASKED,
                map().owner(200),
                "a node that does not know its host is where it was asked");
        assertEquals(Set.of(A, ASKED), map().masters());
    }

    @Test
    void aSlotThatMovedIsElsewhereAndItsNeighboursAreNot() {
        NodeAddress other = new NodeAddress("b", 3);
        SlotMap changed = map().withMoved(Map.of(50, other, 100, other));
        assertEquals(
                List.of(A, other, A, other),
                List.of(
                        changed.owner(49),
                        changed.owner(50),
                        changed.owner(51),
                        changed.owner(100)));
        assertEquals(A, map().owner(50));
    }

    @Test
    void aRedirectionNamesNodeAndKind() {
        assertEquals(new Redirect(A, false), Redirect.of("MOVED 3999 a:1", "asked"));
        assertEquals(new Redirect(A, true), Redirect.of("ASK 3999 a:1", "asked"));
        assertEquals(
                new Redirect(new NodeAddress("::1", 7), false),
                Redirect.of("MOVED 1 ::1:7", "asked"));
        assertEquals(
                new Redirect(new NodeAddress("asked", 7), false),
                Redirect.of("MOVED 1 :7", "asked"));
        assertNull(Redirect.of("ERR no such thing", "asked"));
    }
}
