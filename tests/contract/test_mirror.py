"""Mirrors on every layout, through both drivers: same ids, same bytes, whatever comes late, twice
or half; and what no mirror takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import MirrorStopped, QueueIsMirror, QueueMissing
from busmq_spark.groups import shared_group
from busmq_spark.groups.dead_letter import put_back
from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading import reader_operations, times_of_ids
from busmq_spark.reading.reader_subscriptions import register
from busmq_spark.writing import mirror as flows
from busmq_spark.writing.idempotent_push import push_from
from busmq_spark.writing.mirror import (
    NEWEST_MESSAGE,
    NO_MARK,
    MirrorAppendResult,
    MirrorChunk,
    MirrorOf,
    OriginQueueState,
)
from busmq_spark.writing.sink import StagedList, commit
from tests.clocks import npm_push
from tests.conftest import FreshKeys
from tests.contract.conftest import Born, Redis, Run

OF = MirrorOf("redis://eu:6379", ("eu",))


class Pair:
    """A queue, and its mirror beside it (under another name: one server is enough to see what the
    scripts do).
    """

    def __init__(self, run: Run, redis: Redis, origin: QueueKeys, keys: QueueKeys) -> None:
        self.run, self.redis, self.origin, self.keys = run, redis, origin, keys
        self.last = 0

    def push(self, many: int) -> None:
        [now] = self.run(reader_operations.states([(self.origin, -1)]))
        self.run(
            queue.push_many(
                self.origin, [b"v%d" % id for id in range(now.last_id + 1, now.last_id + many + 1)]
            )
        )

    def span(self, after: int = NO_MARK, upto: int = NEWEST_MESSAGE) -> OriginQueueState:
        [found] = self.run(flows.read_spans([(self.origin, (after, upto))]))
        return found

    def begin(self, **more: Any) -> flows.BeginMirrorResult:
        found = self.run(flows.begin_mirror(self.keys, self.span(), OF, **more))
        self.last = found.last
        return found

    def chunk(self, after: int | None = None, upto: int = 0, floor: int = 0) -> MirrorChunk:
        """As a mirror reads it."""
        span = self.span()
        after, upto = self.last if after is None else after, upto or span.last_id
        stored = [(id, value) for id, value in self.stored(self.origin) if after < id <= upto]
        pairs = b"".join(
            b"$%d\r\n%d\r\n$%d\r\n%b\r\n" % (len(str(id)), id, len(value), value)
            for id, value in stored
        )
        return MirrorChunk(span.born, after, upto, span.last_id, floor, len(stored), pairs)

    def append(self, chunk: MirrorChunk) -> MirrorAppendResult:
        found = self.run(flows.append_chunk(self.keys, chunk))
        self.last = max(self.last, found.last)
        return found

    def copy(self) -> None:
        assert self.append(self.chunk()).status == "ok"

    def stored(self, keys: QueueKeys | None = None) -> list[tuple[int, bytes]]:
        items = self.redis("LRANGE", (keys or self.keys).messages, 0, -1)
        return [(int(id), value) for id, value in zip(items[0::2], items[1::2], strict=True)]

    def field(self, name: str) -> bytes | None:
        found: bytes | None = self.redis("HGET", self.keys.metadata, name)
        return found


Make = Callable[..., Pair]


@pytest.fixture
def pair(run: Run, redis: Redis, born: Born, fresh_keys: FreshKeys) -> Make:
    def make(messages: int = 5, **settings: int) -> Pair:
        keys, _ = born(**settings)
        made = Pair(run, redis, keys, fresh_keys("mirror"))
        if messages:
            made.push(messages)
        return made

    return make


def test_a_mirror_has_the_ids_the_bytes_the_life_and_the_settings_of_its_origin(
    pair: Make, run: Run, redis: Redis
) -> None:
    both = pair(5, ttl_s=90, maxsize=7)
    assert both.begin().status == "ok"
    both.copy()
    longer = pair(0)
    run(queue.push_many(longer.origin, [b"12", b"1", b"of many characters"]))
    longer.begin()
    longer.copy()
    assert longer.field("sizes") == redis("HGET", longer.origin.metadata, "sizes") == b"1:3:18:0:0"
    assert both.stored() == both.stored(both.origin) == [(n, b"v%d" % n) for n in range(1, 6)]
    [of_origin, of_mirror] = run(reader_operations.states([(both.origin, 5), (both.keys, 5)]))
    assert of_mirror == of_origin
    assert both.field("sizes") == redis("HGET", both.origin.metadata, "sizes")
    assert run(times_of_ids.ms_of(both.keys, 5)) is not None
    assert all(
        0 < redis("TTL", key) <= 90
        for key in (both.keys.metadata, both.keys.messages, both.keys.msgid)
    )
    [found] = run(flows.read_mirror_states([both.keys]))
    assert found == flows.MirrorQueueState(both.keys.name, OF, 5, 5)
    assert run(flows.read_mirror_states([both.origin])) == [None]


def test_what_comes_twice_late_or_too_early_changes_nothing(pair: Make) -> None:
    both = pair(6)
    both.begin()
    first, second = both.chunk(0, 3), both.chunk(3, 6)
    assert both.append(second) == MirrorAppendResult("at", 0)
    assert both.append(first) == MirrorAppendResult("ok", 3)
    assert both.append(first) == MirrorAppendResult("ok", 3)
    assert both.append(second) == MirrorAppendResult("ok", 6)
    assert both.append(first) == MirrorAppendResult("ok", 6)
    assert both.append(both.chunk(1, 5)) == MirrorAppendResult("ok", 6)
    assert both.stored() == both.stored(both.origin)


def test_of_a_chunk_that_another_mirror_has_begun_the_rest_is_appended(pair: Make) -> None:
    both = pair(6)
    both.begin()
    both.append(both.chunk(0, 4))
    assert both.append(both.chunk(2, 6)) == MirrorAppendResult("ok", 6)
    assert both.stored() == both.stored(both.origin)


@given(
    chunks=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.booleans()), max_size=12)
)
def test_whatever_chunks_come_in_whatever_order_the_mirror_is_a_prefix_of_its_origin(
    chunks: Sequence[tuple[int, int, bool]], link: Any, born: Born, fresh_keys: FreshKeys
) -> None:
    keys, _ = born()
    both = Pair(link.run, lambda *words: link.execute(command(*words)), keys, fresh_keys("mirror"))
    both.push(12)
    both.begin()
    for after, many, trims in chunks:
        both.append(both.chunk(after, max(1, min(12, after + many)), floor=0 if not trims else 1))
    known = both.stored()
    last = int((both.field("mirrored") or b"").split(b":")[0])
    assert last == int(link.execute(command("GET", both.keys.msgid)) or 0)
    assert [id for id, _ in known] in ([*range(1, last + 1)], [*range(2, last + 1)])
    assert set(known) <= set(both.stored(both.origin))


def test_holes_and_what_was_taken_before_it_was_copied_are_followed(
    pair: Make, run: Run, redis: Redis
) -> None:
    both = pair(6)
    redis("LREM", both.origin.messages, 1, "3"), redis("LREM", both.origin.messages, 1, "v3")
    both.begin()
    both.copy()
    assert [id for id, _ in both.stored()] == [1, 2, 4, 5, 6]
    assert both.field("sizes") == b"", "nothing is known of sizes where an id is missing"
    both.push(2)
    run(queue.trim(both.origin, 8))
    both.copy()
    assert (both.last, [id for id, _ in both.stored()], redis("GET", both.keys.msgid)) == (
        8,
        [1, 2, 4, 5, 6],
        b"8",
    )
    both.push(1)
    both.copy()
    assert both.stored()[-1] == (9, b"v9")


def test_a_mirror_of_a_queue_that_was_trimmed_begins_where_the_origin_does(
    pair: Make, run: Run
) -> None:
    both = pair(6)
    run(queue.trim(both.origin, 4))
    assert both.begin().last == 4
    both.copy()
    assert both.stored() == [(5, b"v5"), (6, b"v6")]
    empty = pair(3)
    run(queue.trim(empty.origin, 3))
    assert empty.begin().last == 3
    assert empty.append(empty.chunk()) == MirrorAppendResult("ok", 3)
    empty.push(1)
    empty.copy()
    assert empty.stored() == [(4, b"v4")]


def test_trims_are_followed_but_for_what_a_reader_of_the_mirror_has_not_acked(
    pair: Make, run: Run
) -> None:
    both = pair(6)
    both.begin()
    both.copy()
    both.append(both.chunk(floor=2))
    assert [id for id, _ in both.stored()] == [3, 4, 5, 6]
    run(register(both.keys, "local", 3))
    both.append(both.chunk(floor=6))
    assert [id for id, _ in both.stored()] == [4, 5, 6]
    run(
        reader_operations.ack_to(
            [reader_operations.CumulativeAckRequest(both.keys, 6, both.span().born, "")], "local"
        )
    )
    assert both.stored() == []
    both.push(1)
    both.copy()
    assert both.stored() == [(7, b"v7")]


def test_a_long_trim_goes_in_bounded_steps(pair: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "MAX_MESSAGES_PER_ACK", 2)
    both = pair(7)
    both.begin()
    both.copy()
    assert both.append(both.chunk(floor=6)) == MirrorAppendResult("ok", 7)
    assert [id for id, _ in both.stored()] == [7]


def test_nothing_of_ours_pushes_to_a_mirror_and_all_of_it_once_it_is_promoted(
    pair: Make, run: Run, redis: Redis
) -> None:
    both = pair(3)
    both.begin()
    both.copy()
    key = both.keys.stage("q:0:0:" + "a" * 16)
    redis("RPUSH", key, "row")
    staged = [StagedList(both.keys.name, 0, key, ((1, 1),))]
    tries: list[Callable[[], Any]] = [
        lambda: run(queue.push(both.keys, b"x")),
        lambda: run(queue.push_many(both.keys, [b"x", b"y"])),
        lambda: run(put_back(both.keys, "a" * 16, [(1, b"x")])),
        lambda: run(commit(both.keys, "sink", 0, staged)),
        lambda: run(push_from(both.keys, "sender", [1], [b"x"])),
    ]
    for each in tries:
        with pytest.raises(QueueIsMirror, match="busmq mirror promote") as caught:
            each()
        assert caught.value.details["queue"] == both.keys.name
    assert both.stored() == both.stored(both.origin)
    assert redis("LLEN", key) == 1, "what was staged stays"
    assert run(flows.promote(both.keys)) == (True, 3, 3)
    for each in tries:
        each()
    assert [id for id, _ in both.stored()] == [*range(1, 10)]
    assert run(flows.promote(both.keys)) == (False, 9, 0), "promoting again does nothing"


def test_what_is_under_way_when_a_mirror_is_promoted_is_refused_and_the_range_is_known(
    pair: Make, run: Run
) -> None:
    both = pair(3)
    both.begin()
    both.copy()
    both.push(4)
    late = both.chunk()
    both.append(replace(both.chunk(3, 3), seen=7))
    assert run(flows.promote(both.keys)) == (True, 3, 7)
    run(queue.push(both.keys, b"new"))
    assert both.append(late).status == "own"
    assert both.stored()[-1] == (4, b"new")
    again = both.begin()
    assert (again.status, again.born, again.last, again.promoted) == ("own", both.span().born, 4, 3)


def test_an_id_given_by_a_program_that_does_not_know_mirrors_stops_it_and_is_named(
    pair: Make, redis: Redis
) -> None:
    both = pair(3)
    both.begin()
    both.copy()
    npm_push(redis, both.keys, 2)
    both.push(2)
    with pytest.raises(
        MirrorStopped, match=r"ids 4\.\.5 were given here, by a program that does not know mirrors"
    ) as caught:
        both.append(both.chunk())
    assert (
        caught.value.details["kind"],
        caught.value.details["first"],
        caught.value.details["last"],
    ) == ("foreign", 4, 5)
    assert len(both.stored()) == 5


def test_a_new_life_begins_only_in_the_place_of_the_one_that_was_seen(
    pair: Make, run: Run, redis: Redis
) -> None:
    both = pair(3)
    before = both.begin().born
    both.copy()
    old = both.chunk(0, 3)
    old_span = both.span()
    run(queue.delete(both.origin))
    run(queue.attach(both.origin, "c" * 16, ttl_s=60))
    both.push(2)
    assert both.begin().status == "life", "the caller expects no queue"
    assert both.begin(expected=before) == flows.BeginMirrorResult("ok", "c" * 16, 0)
    assert both.append(old) == MirrorAppendResult("life")
    late = run(flows.begin_mirror(both.keys, old_span, OF, expected=""))
    assert (late.status, late.born) == ("life", "c" * 16)
    late = run(flows.begin_mirror(both.keys, old_span, OF, expected=before))
    assert (late.status, late.born) == ("life", "c" * 16)
    both.copy()
    assert both.stored() == [(1, b"v1"), (2, b"v2")]
    assert redis("EXISTS", both.keys.toack) == 0


def test_a_queue_of_this_place_s_own_is_not_written_over_but_on_request(
    pair: Make, run: Run
) -> None:
    both = pair(3)
    run(queue.attach(both.keys, "d" * 16, ttl_s=60))
    run(queue.push(both.keys, b"mine"))
    found = both.begin()
    assert (found.status, found.born, found.last, found.promoted) == ("own", "d" * 16, 1, -1)
    assert both.append(both.chunk(0, 3)) == MirrorAppendResult("own")
    assert both.stored() == [(1, b"mine")]
    assert both.begin(replace=True).status == "life", "another one than was seen"
    assert both.begin(replace=True, expected="d" * 16).status == "ok"
    both.copy()
    assert both.stored() == both.stored(both.origin)


def test_a_mirror_that_expired_begins_again_with_the_same_life_and_its_local_positions(
    pair: Make, run: Run, redis: Redis
) -> None:
    both = pair(3)
    both.begin()
    both.copy()
    run(register(both.keys, "local", 2))
    redis("DEL", *both.keys.peer_keys)
    assert both.append(both.chunk(3, 3)) == MirrorAppendResult("missing")
    with pytest.raises(QueueMissing):
        run(flows.promote(both.keys))
    both.begin()
    both.copy()
    assert both.stored() == both.stored(both.origin)
    assert run(reader_operations.subscriptions([both.keys])) == [{"local": 2}]


def test_fingerprints_are_those_of_the_ids_asked_for(pair: Make, run: Run) -> None:
    both = pair(5)
    found = both.span(2, 4)
    assert (found.after_mark, found.upto_mark) == (
        reader_operations.fingerprint(b"v2"),
        reader_operations.fingerprint(b"v4"),
    )
    assert (both.span().upto, both.span().upto_mark) == (5, reader_operations.fingerprint(b"v5"))
    run(queue.trim(both.origin, 3))
    found = both.span(2, 9)
    assert (found.after_mark, found.upto_mark, found.floor, found.last_id) == ("", "", 3, 5)
    run(queue.trim(both.origin, 5))
    assert (both.span(5).after_mark, both.span().upto, both.span().floor) == ("", 0, 5)
    both.begin()
    assert both.span().mirror_of == ""
    assert run(flows.read_spans([(both.keys, (-1, -1))]))[0].mirror_of == OF.to_json()
    assert MirrorOf.parse(OF.to_json()) == OF


def test_the_mark_of_the_last_message_is_known_without_the_message(pair: Make, run: Run) -> None:
    both = pair(3)
    both.begin()
    both.copy()
    run(queue.trim(both.keys, 3))
    assert both.begin().mark == reader_operations.fingerprint(b"v3")


def test_groups_of_the_origin_are_had_where_it_has_them_and_never_behind_what_is_copied(
    pair: Make, run: Run, redis: Redis
) -> None:
    both = pair(6)
    born = both.begin().born
    run(register(both.origin, "billing", 2))
    run(register(both.origin, "mail", "earliest", shared={"lease_ms": 1000}))
    [(life, wanted)] = run(flows.read_group_positions([both.origin]))
    assert (life, dict(wanted)) == (born, {"billing": (2, False), "mail": (0, True)})
    both.append(both.chunk(0, 4))
    assert run(flows.set_positions(both.keys, born, {**wanted, "ahead": (6, False)}))
    assert run(reader_operations.subscriptions([both.keys])) == [
        {"billing": 2, "mail": 0, "ahead": 4}
    ]
    run(register(both.keys, "local", 1))
    assert run(flows.set_positions(both.keys, born, {"billing": (3, False), "local": (4, False)}))
    assert run(reader_operations.subscriptions([both.keys])) == [{"billing": 3, "local": 1}], (
        "what is gone goes, what is of this place stays"
    )
    run(reader_operations.lease([both.keys], "billing", "a reader", 10_000, [""]))
    run(flows.set_positions(both.keys, born, {"billing": (4, False)}))
    assert run(reader_operations.subscriptions([both.keys])) == [{"billing": 3, "local": 1}], (
        "it is read here"
    )
    assert not run(flows.set_positions(both.keys, "e" * 16, {}))
    assert not run(flows.set_positions(both.origin, born, {}))


def test_a_shared_group_goes_on_at_a_promoted_mirror_behind_what_is_settled(
    pair: Make, run: Run
) -> None:
    both = pair(6)
    born = both.begin().born
    both.copy()
    run(register(both.origin, "mail", "earliest", shared={"lease_ms": 1000}))
    leased = run(shared_group.lease(both.origin, "mail", "t1", 3)).deliveries
    run(
        shared_group.settle(
            both.origin,
            "mail",
            born,
            [shared_group.SettleRequest(each.id, each.token, "ack") for each in leased[:2]],
        )
    )
    [(_, wanted)] = run(flows.read_group_positions([both.origin]))
    run(flows.set_positions(both.keys, born, wanted))
    run(flows.promote(both.keys))
    run(register(both.keys, "mail", "latest", shared={"lease_ms": 1000}))
    assert [each.id for each in run(shared_group.lease(both.keys, "mail", "t2", 9)).deliveries] == [
        3,
        4,
        5,
        6,
    ]
    assert run(flows.set_positions(both.keys, born, {})) is False, (
        "a late call changes nothing once it is promoted"
    )


def test_ids_rise_at_a_mirror_that_two_copy_at_once(pair: Make) -> None:
    both = pair(9)
    both.begin()
    for after, upto in ((0, 2), (0, 3), (2, 5), (3, 4), (5, 9), (4, 9)):
        both.append(both.chunk(after, upto))
    assert all(a < b for (a, _), (b, _) in pairwise(both.stored()))
    assert both.stored() == both.stored(both.origin)
