"""Flows fed with canned replies: no Redis, no loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from busmq_spark.errors import (
    BusError,
    ConfigError,
    LinkLost,
    QueueMissing,
    StagingLost,
    StaleBatch,
)
from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import (
    Flow,
    RedisCall,
    Step,
    command,
    run_async,
    run_sync,
    script,
)
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import CHUNK_MESSAGES, Message
from busmq_spark.queue.scripts import load
from busmq_spark.reading import reader_operations
from busmq_spark.reading.reader_operations import AckResult, CumulativeAckRequest
from busmq_spark.writing import sink
from busmq_spark.writing.sink import CommitStoppedAtMaxsize, StagedList

KEYS = QueueKeys("q")


class Canned:
    """Answers each step with the next reply, raises it when it is an error, and remembers the
    steps.
    """

    def __init__(self, *replies: Any) -> None:
        self.replies: Iterator[Any] = iter(replies)
        self.steps: list[Any] = []

    def __call__(self, step: Step) -> Any:
        self.steps.append(step)
        reply = next(self.replies)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def later(self, step: Step) -> Any:
        await asyncio.sleep(0)
        return self(step)


def asks_twice() -> Flow[str]:
    try:
        first = yield command("GET", "a")
    except LinkLost as error:
        first = f"caught {error.details['reason']}"
    second = yield [command("GET", "b"), command("GET", "c")]
    return f"{first} {second}"


@pytest.mark.parametrize("way", ["sync", "async"])
class TestDrivers:
    def run(self, way: str, flow: Flow[Any], canned: Canned) -> Any:
        return (
            run_sync(flow, canned) if way == "sync" else asyncio.run(run_async(flow, canned.later))
        )

    def test_replies_go_into_the_flow_and_its_result_comes_out(self, way: str) -> None:
        canned = Canned("one", ["two", "three"])
        assert self.run(way, asks_twice(), canned) == "one ['two', 'three']"
        assert [type(step) for step in canned.steps] == [RedisCall, list]

    def test_an_error_of_the_driver_is_thrown_into_the_flow_which_may_go_on(self, way: str) -> None:
        assert (
            self.run(way, asks_twice(), Canned(LinkLost(url="u", reason="gone"), "x"))
            == "caught gone x"
        )

    def test_an_error_the_flow_does_not_catch_comes_out_as_it_is(self, way: str) -> None:
        lost = LinkLost(url="u", reason="gone")
        with pytest.raises(LinkLost) as caught:
            self.run(way, asks_twice(), Canned("one", lost))
        assert caught.value is lost

    def test_an_error_that_is_not_ours_is_not_offered_to_the_flow(self, way: str) -> None:
        def greedy() -> Flow[str]:
            try:
                yield command("GET", "a")
            except BusError:
                return "swallowed"
            return "done"

        with pytest.raises(ZeroDivisionError):
            self.run(way, greedy(), Canned(ZeroDivisionError()))

    def test_a_flow_that_asks_nothing_just_returns(self, way: str) -> None:
        assert self.run(way, reader_operations.counters([]), Canned()) == []


def test_a_script_is_loaded_once_without_its_header_and_with_its_includes() -> None:
    made = load("ack_to")
    assert made is load("ack_to")
    assert "local function find(" in made.text
    assert "local function mark(" in made.text
    assert not any(line.startswith("--") for line in made.text.splitlines())


def test_a_script_call_carries_keys_before_arguments() -> None:
    call = script("pop", ["m", "t"], (1, 2, 3))
    assert (call.words, call.key_count, call.idempotent) == (("m", "t", 1, 2, 3), 2, True)


def test_push_many_stops_at_the_first_chunk_that_did_not_fit() -> None:
    canned = Canned([1, CHUNK_MESSAGES], [CHUNK_MESSAGES + 1, 3])
    assert (
        run_sync(queue.push_many(KEYS, [b"v"] * (3 * CHUNK_MESSAGES)), canned) == CHUNK_MESSAGES + 3
    )
    assert len(canned.steps) == 2


def test_push_and_pop_are_the_flows_that_may_not_be_repeated() -> None:
    canned = Canned([1, 1], [1, 1], [])
    run_sync(queue.push(KEYS, b"v"), canned)
    run_sync(queue.push_many(KEYS, [b"v"]), canned)
    run_sync(queue.pop(KEYS), canned)
    assert [step.idempotent for step in canned.steps] == [False, False, False]


def test_a_push_to_a_queue_that_is_not_attached_says_so() -> None:
    with pytest.raises(QueueMissing):
        run_sync(queue.push(KEYS, b"v"), Canned([0, -1]))


def test_a_pop_asks_for_no_more_than_one_chunk() -> None:
    canned = Canned([b"7", b"v"])
    assert run_sync(queue.pop(KEYS, most=10**6), canned) == [Message(7, b"v")]
    assert canned.steps[0].words[1] == CHUNK_MESSAGES


def test_an_ack_is_repeated_while_its_call_was_full() -> None:
    canned = Canned(queue.MAX_MESSAGES_PER_ACK, queue.MAX_MESSAGES_PER_ACK, 3)
    run_sync(queue.ack(KEYS, 10**6, ttl_s=30), canned)
    assert len(canned.steps) == 3


@pytest.mark.parametrize("last", [-1, 2**53, "7", None, 1.5])
def test_an_ack_of_what_is_no_id_is_refused_before_redis_sees_it(last: Any) -> None:
    with pytest.raises(ConfigError, match="the id to ack"):
        run_sync(queue.ack(KEYS, last, ttl_s=30), Canned())


def test_only_acks_with_more_to_drop_are_asked_again() -> None:
    acks = [CumulativeAckRequest(QueueKeys(name), 9, "b", "") for name in ("one", "two", "three")]
    canned = Canned([[[b"ok", 9], [b"more", 2000], [b"recreated", b"other"]]], [[[b"ok", 5]]])
    assert run_sync(reader_operations.ack_to(acks), canned) == [
        AckResult("ok", "9"),
        AckResult("ok", "5"),
        AckResult("recreated", "other"),
    ]
    assert [call.words[0] for call in canned.steps[1]] == ["bus:queue:two:metadata"]


def test_states_of_many_queues_are_cut_into_calls_of_a_bounded_number() -> None:
    row = [30, b"b", 0, b"7", b"3", b"7", 5, b"", b"m", b""]
    most = reader_operations.QUEUES_PER_CALL
    canned = Canned([row * most, row * 7])
    got = run_sync(
        reader_operations.states([(QueueKeys(str(i)), -1) for i in range(most + 7)]), canned
    )
    assert len(got) == most + 7
    assert [call.key_count for call in canned.steps[0]] == [3 * most, 3 * 7]


PART = StagedList("q", 0, "k", ((3, 2),))
MOVES = [(0, 0, 3), (0, 3, 3), (1, 0, 1)]
"""Which list, rows moved before, rows to move."""


def commit(*replies: list[Any]) -> CommitStoppedAtMaxsize | None:
    """Of three chunks in two lists, with the replies of one round trip."""
    return run_sync(
        sink.commit(KEYS, "s", 4, [PART, StagedList("q", 0, "k2", ((1, 1),))]),
        Canned(list(replies)),
    )


def test_a_commit_sends_its_chunks_together() -> None:
    canned = Canned([[b"moved", 3, 0], [b"moved", 3, 0], [b"moved", 1, 0]])
    assert (
        run_sync(sink.commit(KEYS, "s", 4, [PART, StagedList("q", 0, "k2", ((1, 1),))]), canned)
        is None
    )
    assert [[call.words[13:16] for call in step] for step in canned.steps] == [MOVES]


@pytest.mark.parametrize(
    ("replies", "then"),
    [
        ([[b"at", 0, 3], [b"moved", 3, 0], [b"moved", 1, 0]], []),
        ([[b"at", 0, 3], [b"at", 1, 0], [b"moved", 1, 0]], []),
        ([[b"moved", 3, 0], [b"at", 1, 0], [b"at", 1, 0]], MOVES[2:]),
        ([[b"moved", 2, 0], [b"at", 0, 2], [b"at", 0, 2]], [(0, 2, 1), *MOVES[1:]]),
        ([[b"at", 0, 2], [b"at", 0, 2], [b"at", 0, 3]], MOVES[1:]),
        ([[b"at", 1, 0], [b"at", 1, 0], [b"at", -1, 0]], []),
    ],
    ids=[
        "at a later chunk",
        "another between",
        "another behind it",
        "no room for all",
        "another goes on",
        "another has finished",
    ],
)
def test_a_commit_goes_on_where_another_has_brought_it(
    replies: list[Any], then: list[tuple[int, int, int]]
) -> None:
    canned = Canned(replies, [[b"moved", size, 0] for _, _, size in then])
    assert (
        run_sync(sink.commit(KEYS, "s", 4, [PART, StagedList("q", 0, "k2", ((1, 1),))]), canned)
        is None
    )
    assert [[call.words[13:16] for call in step] for step in canned.steps] == [
        MOVES,
        *([then] if then else []),
    ]


@pytest.mark.parametrize("later", [[b"at", -1, 0], [b"stale", 5, 0]])
def test_a_commit_that_another_has_finished_is_done(later: list[Any]) -> None:
    assert commit([b"at", -1, 0], later, later) is None


def test_a_full_queue_ends_the_commit_with_what_is_left() -> None:
    assert commit([b"moved", 3, 0], [b"full", 5, 0], [b"at", 0, 3]) == CommitStoppedAtMaxsize(
        "q", 5, 4
    )


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ([b"lost", 2, 0], StagingLost),
        ([b"stale", 9, 0], StaleBatch),
        ([b"missing", 0, 0], QueueMissing),
    ],
)
def test_what_stops_a_commit_is_an_error_of_its_own(
    reply: list[Any], error: type[BusError]
) -> None:
    with pytest.raises(error):
        commit(reply, [b"at", 0, 0], [b"at", 0, 0])


def test_an_unknown_answer_to_a_commit_is_not_taken_for_success() -> None:
    with pytest.raises(BusError, match="unknown commit status"):
        commit([b"strange", 0, 0], [b"at", 0, 0], [b"at", 0, 0])
