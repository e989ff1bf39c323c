"""Many calls in one packet: others have their turn, and no more is in work than if each came
alone.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.serve.connection import ObjectSession
from tests.conftest import Fresh
from tests.federation.conftest import Serve
from tests.federation.tools import Wire, most_in_work

LINES = 5_000
ASK = b'{"method":"isAttached","arguments":[{"0":"[Function]"}],"callbacks":{"0":["0","0"]}}\n'


@asynccontextmanager
async def calls_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Counter[int]]:
    """How many calls sessions execute in each turn of the loop."""
    turn, found, execute = 0, Counter[int](), ObjectSession._execute

    def counted(self: ObjectSession, name: str, values: list[Any], size: int) -> Any:
        found[turn] += 1
        return execute(self, name, values, size)

    async def turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(ObjectSession, "_execute", counted)
    turning = asyncio.create_task(turns())
    try:
        yield found
    finally:
        turning.cancel()


@pytest.mark.parametrize(
    "first",
    [b"", b'{"method":"attach","arguments":[{}]}\n'],
    ids=["at once", "behind one that takes its time"],
)
async def test_a_packet_of_very_many_calls_leaves_turns_to_others(
    federation: Serve, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    async with (
        federation(limits=PeerLimits(in_flight_messages=2 * LINES)) as (_, server),
        Wire(server) as wire,
    ):
        queue = await wire.open("queue", fresh())
        async with calls_of_a_turn(monkeypatch) as calls:
            await wire.send(queue.channel, first + ASK * LINES)
            for _ in range(LINES):
                answer = await wire.next(queue.channel)
                assert answer is not None
                assert json.loads(answer)["arguments"] == [bool(first)]
        assert calls.total() == LINES + bool(first)
        assert max(calls.values()) < LINES / 4


async def test_calls_in_one_packet_are_no_more_in_work_than_allowed_and_are_done_in_order(
    federation: Serve, fresh: Fresh
) -> None:
    async with (
        federation(limits=PeerLimits(in_flight_messages=5)) as (_, server),
        Wire(server) as wire,
    ):
        queue = await wire.open("queue", fresh())
        [connection] = server._connections
        most = most_in_work(connection)
        push = (
            b'{"method":"push","arguments":[{"0":"x","1":"[Function]"}],'
            b'"callbacks":{"0":["0","1"]}}\n'
        )
        count = b'{"method":"count","arguments":[{"0":"[Function]"}],"callbacks":{"1":["0","0"]}}\n'
        await wire.send(
            queue.channel, b'{"method":"attach","arguments":[{}]}\n' + (push + count) * 100
        )
        answers = [json.loads(await wire.next(queue.channel) or b"") for _ in range(200)]
        assert [answer["arguments"][1] for answer in answers if answer["method"] == 0] == list(
            range(1, 101)
        )
        assert [answer["arguments"][1] for answer in answers if answer["method"] == 1] == list(
            range(1, 101)
        )
        assert most() == 5
        assert connection.work._messages == connection.work._bytes == 0


async def test_empty_lines_cost_nothing_and_change_nothing(federation: Serve, fresh: Fresh) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queue = await wire.open("queue", fresh())
        await wire.send(queue.channel, b"\n" * 1_000_000 + ASK[:20])
        await wire.send(queue.channel, ASK[20:] + b"\n" * 1_000_000 + ASK)
        for _ in range(2):
            assert json.loads(await wire.next(queue.channel) or b"")["arguments"] == [False]
