"""Shared groups on every layout, through both drivers: what is leased to whom, what settling does,
and what stays stored.
"""

from __future__ import annotations

import pytest

from busmq_spark.errors import ConfigError, QueueBusy
from busmq_spark.groups import shared_group as flows
from busmq_spark.queue import queue
from busmq_spark.reading import reader_operations
from busmq_spark.reading.reader_subscriptions import list_subscriptions, register, seek, unsubscribe
from tests.contract.conftest import Redis, Run
from tests.contract.group_tools import LEASE_MS, Make, Shared, ids


def test_messages_are_divided_and_what_is_settled_is_dropped(shared: Make) -> None:
    group = shared()
    one, two = group.lease(2), group.lease(3)
    assert [(each.id, each.value, each.tries) for each in one] == [(1, b"v1", 1), (2, b"v2", 1)]
    assert ids(two) == [3, 4, 5]
    assert group.settle("ack", two) == [1, 1, 1]
    assert (group.position, group.stored) == (0, [1, 2, 3, 4, 5, 6])  # 1 and 2 are not settled
    assert group.settle("ack", one[1:]) == [1]
    assert group.position == 0
    assert group.settle("ack", one[:1]) == [1]
    assert (group.position, group.stored) == (5, [6])
    assert group.settle("ack", group.lease()) == [1]
    assert (group.position, group.stored, group.state.idle) == (6, [], True)
    assert not any(group.redis("EXISTS", key) for key in group.keys.group("g")[1:])


def test_what_another_subscription_has_not_read_stays_and_the_other_way_round(
    shared: Make, run: Run
) -> None:
    group = shared()
    run(reader_operations.subscribe([group.keys], "audit", ["earliest"]))
    group.settle("ack", group.lease(4))
    assert (group.position, group.stored) == (4, [1, 2, 3, 4, 5, 6])
    run(
        reader_operations.ack_to(
            [reader_operations.CumulativeAckRequest(group.keys, 6, group.life, "")], "audit"
        )
    )
    assert group.stored == [5, 6]
    assert ids(group.lease()) == [5, 6]


def test_a_lease_that_has_ended_is_another_s_and_the_late_answer_is_refused(shared: Make) -> None:
    group = shared()
    dead = group.lease(3)
    assert group.leased(0).wait_ms > 0
    group.pass_by(LEASE_MS + 1)
    again = group.lease(2)
    assert [(each.id, each.tries) for each in again] == [(1, 2), (2, 2)]
    assert again[0].first_ms == dead[0].first_ms
    assert group.settle("ack", dead) == [0, 0, 1]  # nobody has 3 yet
    assert group.settle("ack", again) == [1, 1]
    assert group.settle("ack", dead) == [-1, -1, -1]
    assert (group.position, ids(group.lease())) == (3, [4, 5, 6])


@pytest.mark.parametrize("action", ["retry", "extend", "release"])
def test_a_late_answer_changes_nothing_of_the_lease_of_another(
    shared: Make, action: flows.Action
) -> None:
    group = shared(1)
    dead = group.lease()
    group.pass_by(LEASE_MS + 1)
    live = group.lease()
    assert group.settle(action, dead, 1) == [0]
    assert (group.lease(), group.state.in_flight) == ([], 1)
    assert group.settle("ack", live) == [1]


def test_a_retry_comes_when_it_is_due(shared: Make) -> None:
    group = shared(3)
    first = group.lease(2)
    assert group.settle("retry", first, 60_000) == [1, 1]
    assert ids(group.lease()) == [3]
    found = group.state
    assert (found.in_flight, found.waiting, found.unread, found.idle) == (1, 2, 0, False)
    assert 0 < group.leased().wait_ms <= LEASE_MS
    group.pass_by(LEASE_MS - 10_000)
    assert group.lease() == []
    group.pass_by(70_000 - LEASE_MS)
    assert [(each.id, each.tries) for each in group.lease()] == [(1, 2), (2, 2), (3, 2)]


def test_a_lease_that_is_extended_holds_longer(shared: Make) -> None:
    group = shared(1)
    held = group.lease()
    assert group.settle("extend", held, 5 * LEASE_MS) == [1]
    group.pass_by(4 * LEASE_MS)
    assert group.lease() == []
    assert group.settle("retry", held, 1000) == [1]
    assert group.settle("extend", held, LEASE_MS) == [0]  # it was given back
    group.pass_by(1001)
    assert ids(group.lease()) == [1]


def test_what_is_released_comes_at_once_and_the_try_does_not_count(shared: Make) -> None:
    group = shared(2)
    held = group.lease()
    assert group.settle("release", held) == [1, 1]
    assert group.settle("release", held) == [1, 1]  # the packet that came twice
    assert [(each.id, each.tries) for each in group.lease()] == [(1, 1), (2, 1)]


@pytest.mark.parametrize("action", ["release", "retry"])
def test_what_is_given_back_comes_at_once_also_when_the_clock_is_set_back_meanwhile(
    shared: Make, action: flows.Action
) -> None:
    group = shared(4)
    held = group.lease(3)
    assert group.settle(action, held[1:]) == [1, 1]
    group.pass_by(-LEASE_MS)
    assert ids(group.lease(9)) == [2, 3, 4]
    group.settle(action, held[:1], 1000)
    group.pass_by(-LEASE_MS)
    assert (group.lease(), group.state.waiting) == ([], 1)


def test_what_is_released_may_have_to_wait_and_the_try_does_not_count(shared: Make) -> None:
    group = shared(1)
    assert group.settle("release", held := group.lease(), 60_000) == [1]
    assert (group.lease(), group.state.waiting) == ([], 1)
    assert group.settle("release", held) == [1]
    group.pass_by(60_001)
    assert [(each.id, each.tries) for each in group.lease()] == [(1, 1)]


def test_a_settlement_that_is_executed_twice_is_seen(shared: Make) -> None:
    group = shared(2)
    held = group.lease()
    assert group.settle("ack", [held[0], held[0]]) == [1, -1]
    assert group.settle("retry", held[1:], 0) == group.settle("retry", held[1:], 0) == [1]
    assert [(each.id, each.tries) for each in group.lease()] == [(2, 2)]


def test_never_more_than_the_limit_is_in_flight(shared: Make) -> None:
    group = shared(10, limit=4)
    held = group.lease(3)
    assert ids(group.lease(9)) == [4]
    assert group.lease() == []
    group.settle("retry", held[:1], 60_000)  # what waits is not in flight
    assert ids(group.lease()) == [5]
    group.pass_by(LEASE_MS + 1)
    assert group.state.in_flight == 0
    assert ids(group.lease()) == [2, 3, 4, 5]  # 1 waits for its time
    assert group.state.in_flight == 4


def test_a_lost_reply_is_had_again_and_nothing_more(shared: Make) -> None:
    group = shared()
    lost = group.leased(2, "same")
    again = group.leased(2, "same", again=True)
    assert [each._replace(leased_ms=0) for each in again.deliveries] == [
        each._replace(leased_ms=0) for each in lost.deliveries
    ]
    assert group.leased(2, "never-executed", again=True).deliveries == []
    assert ids(group.lease()) == [3, 4, 5, 6]


@pytest.mark.parametrize("action", ["retry", "release"])
def test_a_repeated_call_that_comes_late_leases_nothing_that_was_given_back(
    shared: Make, action: flows.Action
) -> None:
    group = shared()
    given_back = group.leased(2, "same").deliveries
    group.settle(action, given_back)
    assert group.leased(2, "same", again=True).deliveries == []
    assert group.state.waiting == 2


def test_a_pause_leases_nothing_and_settles(shared: Make, run: Run) -> None:
    group = shared()
    held = group.lease(2)
    assert run(flows.pause(group.keys, "g", paused=True))
    assert (group.leased().status, group.lease(), group.state.paused) == ("paused", [], True)
    assert group.settle("ack", held) == [1, 1]
    assert run(flows.pause(group.keys, "g", paused=False))
    assert ids(group.lease()) == [3, 4, 5, 6]
    assert not run(flows.pause(group.keys, "no-such", paused=True))


def test_what_another_consumer_takes_is_told(shared: Make, redis: Redis, run: Run) -> None:
    group = shared()
    group.lease(2)
    run(queue.pop(group.keys, most=4))
    group.pass_by(LEASE_MS + 1)
    found = group.leased()
    assert (ids(found.deliveries), found.gone) == ([5, 6], 4)
    assert group.settle("ack", found.deliveries) == [1, 1]
    assert group.position == 6


def test_in_another_life_of_the_queue_nothing_of_the_old_one_counts(shared: Make, run: Run) -> None:
    group = shared()
    held = group.lease()
    run(queue.delete(group.keys))
    assert group.leased().status == "missing"
    run(queue.attach(group.keys, "another-life", ttl_s=60))
    run(queue.push_many(group.keys, [b"new"] * 3))
    assert group.leased().status == "no_group"
    assert group.settle("ack", held) is None
    new = Shared(run, group.redis, group.keys, "another-life")
    assert [group.redis("EXISTS", key) for key in group.keys.group("g")] == [1, 0, 0, 0]
    assert [(each.id, each.value, each.tries) for each in new.lease()] == [
        (1, b"new", 1),
        (2, b"new", 1),
        (3, b"new", 1),
    ]


def test_a_name_is_that_of_one_kind_of_group(shared: Make, run: Run) -> None:
    group = shared()
    with pytest.raises(QueueBusy, match="has a group 'g', which is shared"):
        run(reader_operations.subscribe([group.keys], "g", ["earliest"]))
    run(reader_operations.subscribe([group.keys], "audit", ["latest"]))
    with pytest.raises(QueueBusy, match="has a group 'audit', which is ordered"):
        run(register(group.keys, "audit", shared={"lease_ms": LEASE_MS}))
    assert run(reader_operations.subscribe([group.keys], "audit", ["earliest"])) == [6]
    found = {
        each.subscription.name: (each.shared, each.unread)
        for each in run(flows.list_groups(group.keys))
    }
    assert found == {"g": (True, 6), "audit": (False, 0)}


def test_a_group_that_is_dropped_leaves_nothing(shared: Make, run: Run) -> None:
    group = shared()
    held = group.lease(2)
    assert run(unsubscribe(group.keys, "g"))
    assert (
        run(list_subscriptions(group.keys)),
        [group.redis("EXISTS", key) for key in group.keys.group("g")],
    ) == ([], [0, 0, 0, 0])
    assert (group.leased().status, group.settle("ack", held)) == ("no_group", None)
    run(
        reader_operations.subscribe([group.keys], "g", ["earliest"])
    )  # the name is free, also for the other kind


def test_a_group_goes_to_another_place_while_nothing_is_in_flight(shared: Make, run: Run) -> None:
    group = shared()
    run(reader_operations.subscribe([group.keys], "keeps", ["earliest"]))
    held = group.lease(4)
    with pytest.raises(QueueBusy, match="Pause the group and wait until it is drained"):
        run(seek(group.keys, "g", 0))
    group.settle("ack", held)
    assert run(seek(group.keys, "g", 1)) == 1
    assert (group.position, ids(group.lease(2))) == (1, [2, 3])
    group.pass_by(LEASE_MS + 1)
    late = group.lease(1)
    group.settle("retry", late, 1000)
    assert run(seek(group.keys, "g", "-2 messages")) == 4
    assert group.settle("ack", late) == [-1]
    assert [(each.id, each.tries) for each in group.lease()] == [(5, 1), (6, 1)]
    with pytest.raises(ConfigError, match="has no group 'no-such'"):
        run(seek(group.keys, "no-such", 0))


def test_an_ordered_group_goes_to_another_place_while_nobody_holds_it(
    shared: Make, run: Run
) -> None:
    group = shared()
    run(reader_operations.subscribe([group.keys], "o", ["earliest"]))
    assert run(seek(group.keys, "o", 4)) == 4
    assert run(seek(group.keys, "o", "earliest")) == 0
    assert run(seek(group.keys, "o", "latest")) == 6
    run(reader_operations.lease([group.keys], "o", "holder", 60_000, [""]))
    with pytest.raises(QueueBusy, match="is read as group 'o'"):
        run(seek(group.keys, "o", 2))
    assert run(seek(group.keys, "o", 2, lambda holder: holder == "holder")) == 2
    with pytest.raises(ConfigError, match="start is 7; expected"):
        run(seek(group.keys, "o", 7))


def test_a_call_leases_a_bounded_number_of_bytes(shared: Make, run: Run) -> None:
    group = shared(0)
    run(queue.push_many(group.keys, [b"x" * 300_000] * 5))
    assert ids(group.lease()) == [1, 2]
    group.pass_by(LEASE_MS + 1)
    assert ids(group.lease()) == [1, 2]
    assert ids(group.lease()) == [3, 4]


def test_a_call_drops_a_bounded_number_of_messages(
    shared: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "MAX_MESSAGES_PER_ACK", 3)
    group = shared(8)
    group.settle("ack", group.lease(7))
    assert group.stored == [4, 5, 6, 7, 8]
    group.settle("ack", [])
    assert group.stored == [7, 8]
    group.settle("ack", group.lease())
    assert (group.position, group.stored) == (8, [])


def test_the_keys_live_as_long_as_other_records_of_ours(shared: Make) -> None:
    group = shared()
    group.settle("retry", group.lease(3)[:1], 1000)
    assert all(
        group.redis("TTL", key) > 600_000 for key in (*group.keys.group("g"), group.keys.acks)
    )
