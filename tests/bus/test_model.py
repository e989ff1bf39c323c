"""Several programs at one queue, doing anything in any order, against a model that a person could
keep on paper.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue.consume import Consumption
from busmq_spark.bus.queue.queue import Queue
from tests.bus.tools import UNTIL_S, forget_lease, redis, stored
from tests.conftest import Fresh


@dataclass
class Model:
    """What Redis holds and what each consumer has in hand, as ids."""

    given: int = 0
    stored: list[int] = field(default_factory=list)
    toack: list[int] = field(default_factory=list)
    hands: dict[int, list[int]] = field(default_factory=lambda: {0: [], 1: [], 2: []})
    handed: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0, 2: 0})
    acked: set[int] = field(default_factory=set)

    def push(self, many: int) -> list[int]:
        first, self.given = self.given + 1, self.given + many
        self.stored += range(first, self.given + 1)
        return list(range(first, self.given + 1))

    def next(self, who: int, prefetch: int) -> int | None:
        if not self.hands[who]:
            self.hands[who], self.stored = self.stored[:prefetch], self.stored[prefetch:]
        return self.hands[who].pop(0) if self.hands[who] else None

    def stop(self, who: int) -> None:
        self.stored, self.hands[who] = sorted(self.stored + self.kept(who)), []

    def crash(self, who: int) -> None:
        self.hands[who] = []

    def kept(self, who: int) -> list[int]:
        """What Redis still has of what a consumer has in hand: one that had it before may have
        acked it.
        """
        return [id for id in self.hands[who] if id not in self.acked]

    def deliver(self, who: int, id: int) -> None:
        self.handed[who] = max(self.handed[who], id)
        if id not in self.acked:
            self.toack.append(id)

    def ack(self, who: int, last: int, reader: int | None) -> None:
        """It reaches up to the highest id that this object was handed, also where another object
        reads now.
        """
        last = min(last, self.handed[who])
        self.toack = [id for id in self.toack if id > last]
        if reader is not None:
            self.acked.update(id for id in self.hands[reader] if id <= last)


class Program:
    """One bus with one object for the queue; ``crash`` ends it as kill -9 would, as far as Redis
    can tell.
    """

    def __init__(self, url: str, name: str, prefetch: int, *, reliable: bool) -> None:
        self._url, self._name, self._options = (
            url,
            name,
            {"prefetch": prefetch, "reliable": reliable},
        )
        self.prefetch = prefetch
        self.consumption: Consumption | None = None

    async def __aenter__(self) -> Program:
        self.bus = await Bus(self._url).__aenter__()
        self.queue: Queue = self.bus.queue(self._name)
        await self.queue.attach()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.bus.__aexit__(None, None, None)

    async def crash(self) -> None:
        self.bus._objects.clear()
        await self.bus.__aexit__(None, None, None)
        self.consumption = None
        await self.__aenter__()

    def cut(self) -> None:
        """Break every connection."""
        servers = self.bus.servers
        for link in (*servers.commands, *servers.takes, *servers.pubsub):
            link.drop()

    async def next(self, turns: int | None, **options: Any) -> int:
        """The next message. The links break, and the task is cancelled, after so many turns of the
        loop; then it is asked again.
        """
        if self.consumption is None:
            self.consumption = self.queue.consume(**self._options, **options)
        if turns is not None:
            first = asyncio.ensure_future(anext(self.consumption))
            for _ in range(turns):
                await asyncio.sleep(0)
            self.cut()
            if turns % 2 and first.cancel():
                await asyncio.wait([first])
            if not first.cancelled():
                return (await first).id
        return (await anext(self.consumption)).id

    async def stop(self) -> None:
        self.consumption = None
        await self.queue.stop()


whos = st.integers(0, 2)
moments = st.none() | st.integers(0, 30)
anything = st.one_of(
    st.tuples(st.just("push"), whos, st.integers(1, 9)),
    st.tuples(st.just("next"), whos, moments),
    st.tuples(st.just("next"), whos, moments),
    st.tuples(st.just("stop"), whos, st.none()),
    st.tuples(st.just("crash"), whos, st.none()),
    st.tuples(st.just("cut"), whos, st.none()),
    st.tuples(st.just("ack"), whos, st.integers(0, 40)),
)
Calls = list[tuple[str, int, Any]]


@settings(max_examples=60)
@given(st.lists(anything, min_size=5, max_size=30))
def test_consumers_that_compete_get_everything_once_but_what_died_with_its_process(
    redis_url: str, fresh: Fresh, calls: Calls
) -> None:
    asyncio.run(compete(redis_url, fresh(), calls))


async def compete(url: str, name: str, calls: Calls) -> None:
    model = Model()
    async with AsyncExitStack() as stack, asyncio.timeout(UNTIL_S):
        programs = [
            await stack.enter_async_context(Program(url, name, prefetch, reliable=False))
            for prefetch in (1, 3, 8)
        ]
        for what, who, how in calls:
            program = programs[who]
            match what:
                case "push":
                    assert list(await program.queue.push_many(range(how))) == model.push(how)
                case "next" if (expected := model.next(who, program.prefetch)) is not None:
                    assert await program.next(how) == expected
                case "stop":
                    await program.stop()
                    model.stop(who)
                case "crash":
                    await program.crash()
                    model.crash(who)
                case "cut":
                    program.cut()
            assert await stored(program.queue) == model.stored


PUSH = ("push", 0, 5)
AHEAD: Calls = [PUSH, ("next", 0, None), ("next", 1, None), ("next", 1, None), ("ack", 0, 2)]
"""The first object acks what only the second one was handed."""
IN_HAND: Calls = [
    PUSH,
    *[("next", 0, None)] * 3,
    ("next", 1, None),
    ("ack", 0, 3),
    ("next", 1, None),
    ("crash", 1, None),
    ("next", 2, None),
]
"""The first object acks what it was handed, and what the second one has in hand again."""
AGAIN: Calls = [
    PUSH,
    *[("next", 1, None)] * 3,
    ("stop", 1, None),
    ("next", 1, None),
    ("ack", 1, 3),
    ("crash", 1, None),
    ("next", 2, None),
]
"""An object acks what it was handed before it stopped, and has in hand again."""


@settings(max_examples=60)
@example(AHEAD)
@example(IN_HAND)
@example(AGAIN)
@given(st.lists(anything, min_size=5, max_size=30))
def test_a_reliable_consumer_loses_nothing_and_gets_again_what_it_did_not_ack(
    redis_url: str, fresh: Fresh, calls: Calls
) -> None:
    asyncio.run(rely(redis_url, fresh(), calls))


async def rely(url: str, name: str, calls: Calls) -> None:
    """The caller that requests a message becomes the consumer: the consumer before it is
    stopped.
    """
    model, reader, consumed = Model(), None, set()
    async with AsyncExitStack() as stack, asyncio.timeout(UNTIL_S):
        programs = [
            await stack.enter_async_context(Program(url, name, prefetch, reliable=True))
            for prefetch in (1, 3, 8)
        ]
        for what, who, how in calls:
            program = programs[who]
            match what:
                case "push":
                    assert list(await program.queue.push_many(range(how))) == model.push(how)
                case "next" if model.hands[who] or model.stored or (reader != who and model.toack):
                    if reader not in (None, who):
                        await programs[reader].stop()
                        model.stop(reader)
                    if reader != who:
                        model.stored, model.toack = model.toack + model.stored, []
                    reader, expected = who, model.next(who, program.prefetch)
                    assert expected is not None
                    model.deliver(who, expected)
                    assert await program.next(how) == expected
                    consumed.add(who)
                case "stop" if reader == who:
                    await program.stop()
                    model.stop(who)
                    reader = None
                case "crash" if reader == who:
                    await program.crash()
                    await forget_lease(program.queue)
                    consumed.discard(who)
                    model.toack, model.hands[who], model.handed[who], reader = (
                        model.toack + model.kept(who),
                        [],
                        0,
                        None,
                    )
                case "ack" if who in consumed:
                    await program.queue.ack(how)
                    model.ack(who, how, reader)
                case "cut":
                    program.cut()
            assert await stored(program.queue) == model.stored
            out = model.kept(reader) if reader is not None else []
            assert await redis(program.queue, "LLEN", program.queue.keys.toack) == 2 * (
                len(model.toack) + len(out)
            )


@settings(max_examples=40)
@given(st.lists(st.integers(0, 40), min_size=3, max_size=8), st.integers(1, 20), st.booleans())
def test_stopping_at_any_moment_loses_nothing_and_keeps_the_order(
    redis_url: str, fresh: Fresh, moments: list[int], prefetch: int, reliable: bool
) -> None:
    asyncio.run(stop_and_go(redis_url, fresh(), moments, prefetch, reliable))


async def stop_and_go(
    url: str, name: str, moments: list[int], prefetch: int, reliable: bool
) -> None:
    seen: list[int] = []

    async def collect(consumption: Consumption) -> None:
        async for message in consumption:
            seen.append(message.id)  # to be seen before the end
            await asyncio.sleep(0)

    async with Bus(url) as bus, bus.queue(name) as queue, asyncio.timeout(UNTIL_S):
        await queue.push_many(range(60))
        for turns in moments:
            last = seen[-1] if seen and reliable else 0
            task = asyncio.ensure_future(
                collect(queue.consume(prefetch=prefetch, reliable=reliable, last=last))
            )
            for _ in range(turns):
                await asyncio.sleep(0.0001)  # nothing is waited for: stopping comes at any moment
            await queue.stop()
            await task
            assert seen == list(range(1, len(seen) + 1))
            assert await stored(queue) == list(range(len(seen) + 1, 61))
