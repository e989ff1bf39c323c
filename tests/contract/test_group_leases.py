"""What is leased together, and what becomes of it when its messages are settled apart: on every
layout, through both drivers.
"""

from __future__ import annotations

from busmq_spark.groups import shared_group as flows
from busmq_spark.queue import queue
from tests.contract.conftest import Redis, Run
from tests.contract.group_tools import LEASE_MS, Make, ids


def test_what_is_leased_together_is_one_lease_until_a_part_of_it_is_settled(shared: Make) -> None:
    group = shared(10)
    held = group.lease(8)
    assert group.leases() == {1: 8}
    assert group.settle("ack", held[3:5]) == [1, 1]
    assert group.leases() == {1: 3, 6: 3}
    assert group.settle("retry", held[6:7], 60_000) == [1]
    assert group.settle("release", [held[0], held[7]]) == [1, 1]
    assert group.leases() == {1: 1, 2: 2, 6: 1, 7: 1, 8: 1}
    assert (group.state.in_flight, group.state.waiting) == (3, 3)
    assert [(each.id, each.tries) for each in group.lease(3)] == [(1, 1), (8, 1), (9, 1)]
    group.pass_by(LEASE_MS + 1)
    assert [(each.id, each.tries) for each in group.lease(4)] == [(1, 2), (2, 2), (3, 2), (6, 2)]
    assert group.settle("ack", held) == [0, 0, 0, -1, -1, 0, 1, 0]


def test_messages_that_are_settled_one_by_one_have_leases_of_their_own(shared: Make) -> None:
    group = shared(6)
    together, apart = group.lease(2), group.leased(3, apart=True).deliveries
    assert group.leases() == {1: 2, 3: 1, 4: 1, 5: 1}
    assert group.settle("ack", [*together, apart[1]]) == [1, 1, 1]
    group.pass_by(LEASE_MS + 1)
    assert [(each.id, each.tries) for each in group.leased(9, apart=True).deliveries] == [
        (3, 2),
        (5, 2),
        (6, 1),
    ]
    group.pass_by(LEASE_MS + 1)
    assert [(each.id, each.tries) for each in group.lease()] == [(3, 3), (5, 3), (6, 2)]
    assert group.settle("ack", apart) == [0, -1, 0]


def test_messages_are_held_from_their_lease_until_they_are_settled(shared: Make) -> None:
    group = shared(8)
    together, [apart] = group.lease(4), group.leased(1, apart=True).deliveries
    assert group.held(*range(10)) == [1, 2, 3, 4, 5]
    assert group.settle("ack", [together[1], apart]) == [1, 1]
    assert group.settle("retry", together[2:3], 60_000) == [1]
    group.pass_by(LEASE_MS + 1)
    assert group.held(5, 4, 3, 2, 1) == [4, 3, 1]
    assert group.held() == []


def test_a_late_answer_is_refused_where_another_has_the_message_and_counts_where_nobody_has(
    shared: Make,
) -> None:
    group = shared(8)
    late = group.lease(6)
    group.pass_by(LEASE_MS + 1)
    again = group.lease(3)
    assert (ids(again), group.leases()) == ([1, 2, 3], {1: 3, 4: 3})
    assert group.settle("ack", late) == [0, 0, 0, 1, 1, 1]
    assert group.settle("ack", late) == [0, 0, 0, -1, -1, -1]
    assert group.settle("ack", again) == [1, 1, 1]
    assert group.position == 6


def test_answers_in_any_order_settle_what_they_name(shared: Make) -> None:
    group = shared(9)
    held = group.lease()
    assert group.settle("ack", [held[5], held[1], held[7], held[3]]) == [1, 1, 1, 1]
    assert group.leases() == {1: 1, 3: 1, 5: 1, 7: 1, 9: 1}
    assert group.settle("extend", [held[8], held[7], held[6]], 1000) == [1, -1, 1]
    assert group.settle("ack", held[::-1]) == [1, -1, 1, -1, 1, -1, 1, -1, 1]
    assert (group.position, group.stored, group.state.idle) == (9, [], True)


def test_ids_with_holes_are_leased_and_settled(shared: Make) -> None:
    group = shared(9)
    group.remove(3)
    assert ids(group.lease(5)) == [1, 2, 4, 5, 6]
    assert group.leases() == {1: 2, 4: 3}
    group.pass_by(LEASE_MS + 1)
    group.remove(1, 5)
    found = group.leased(9)
    assert ([(each.id, each.value, each.tries) for each in found.deliveries][:3], found.gone) == (
        [(2, b"v2", 2), (4, b"v4", 2), (6, b"v6", 2)],
        2,
    )
    assert ids(found.deliveries)[3:] == [7, 8, 9]
    assert group.settle("ack", found.deliveries) == [1] * 6
    assert (group.position, group.stored, group.state.idle) == (9, [], True)


def test_what_others_take_of_a_lease_moves_the_mark_and_drops_nothing_else(
    shared: Make, run: Run
) -> None:
    group = shared(6)
    held = group.lease()
    run(queue.pop(group.keys, most=4))
    assert group.settle("ack", []) == []
    assert (group.position, group.stored) == (4, [5, 6])
    assert group.settle("ack", [held[0], held[5]]) == [1, 1]
    assert (group.position, group.stored) == (4, [5, 6])
    assert group.settle("ack", held[4:5]) == [1]
    assert (group.position, group.stored) == (6, [])
    group.pass_by(LEASE_MS + 1)
    assert (group.leased().gone, group.state.idle) == (3, True)


def test_leases_of_a_version_before_are_settled_or_end(
    shared: Make, redis: Redis, run: Run
) -> None:
    group = shared(8)
    base, due, tries, runs = group.keys.group("g")
    held = group.lease(4)
    record, ends = f"1:{held[0].token}:{held[0].first_ms}", int(redis("ZSCORE", due, 1))
    redis("DEL", due, tries)
    redis(
        "ZADD", runs, 6, 6
    )  # of another life of the queue, in which such a program has made the group anew
    redis("HDEL", base, "newest", "wide")
    redis("HSET", base, "next", 4)
    for id in ids(held):
        redis("ZADD", due, ends, id)
        redis("HSET", tries, id, record)
    found = group.state
    assert (found.in_flight, found.waiting, found.unread) == (4, 0, 4)
    run(flows.pause(group.keys, "g", paused=True))
    run(flows.pause(group.keys, "g", paused=False))
    assert group.settle("ack", held[:2]) == [1, 1]
    assert redis("HMGET", base, "next", "newest") == [
        None,
        b"4",
    ], "so that a program of that version finds no group"
    new = group.lease(3)
    assert (ids(new), group.settle("ack", new[2:])) == ([5, 6, 7], [1])
    group.pass_by(LEASE_MS + 1)
    assert [(each.id, each.tries) for each in group.lease()] == [
        (3, 2),
        (4, 2),
        (5, 2),
        (6, 2),
        (8, 1),
    ]
    assert group.settle("ack", held) == [-1, -1, 0, 0]


def test_a_limit_costs_no_reading_of_single_leases(shared: Make, redis: Redis, layout: str) -> None:
    """Of many in flight: every call would hold Redis for half a second beside 50,000 of them."""
    if layout != "direct":
        return  # one server says what its commands were
    group = shared(6_010, limit=6_100)
    for _ in range(6):
        group.leased(1_000, apart=True)
    together = group.lease(5)
    before = reads(redis)
    assert ids(group.lease(3)) == [6_006, 6_007, 6_008]
    assert (group.state.in_flight, group.settle("ack", together)) == (6_008, [1] * 5)
    assert reads(redis) - before < 12
    full = shared(10, limit=7)
    assert (len(full.lease(5)), len(full.lease(5)), len(full.lease(5))) == (5, 2, 0)


def reads(redis: Redis) -> int:
    """How often Redis has read fields of hashes, up to 1,000 leases at once."""
    return int(
        redis("INFO", "commandstats").partition(b"cmdstat_hmget:calls=")[2].partition(b",")[0]
    )


def test_a_group_at_its_limit_does_not_read_again_what_is_in_flight(
    shared: Make, redis: Redis, layout: str
) -> None:
    """Neither for each message that is given back meanwhile: who waits for room asks every
    second.
    """
    if layout != "direct":
        return
    group = shared(9_010)
    for _ in range(9):
        held = group.lease(1_000)
        assert group.settle("ack", held[2::3]) == [1] * 333
    redis("HSET", group.keys.group("g")[0], "limit", 6_005)
    assert len(group.lease(9)) == 2
    assert group.settle("retry", held[:2], 60_000) == [1, 1]
    before = reads(redis)
    assert [len(group.lease(9)) for _ in range(5)] == [2, 0, 0, 0, 0]
    assert (group.state.in_flight, group.state.waiting) == (6_005, 2)
    assert reads(redis) - before < 30
