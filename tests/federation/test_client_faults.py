"""A link that is cut at byte k, again and again: nothing acked is lost, order is kept, every call
is answered or raises.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import FederationLost
from busmq_spark.federation.client import remote_reconnector
from busmq_spark.federation.client import socket as sockets
from busmq_spark.federation.client.federation_clients import FederationClients
from busmq_spark.queue.queue import MIN_RECORD_TTL_S
from tests.bus.tools import ids, until
from tests.conftest import Fresh
from tests.federation.far import Far, far, quick
from tests.federation.tools import SECRET
from tests.support import lasting_port

CUTS = 25
SEED = 20_261_121


def cutting(least: int, most: int) -> itertools.chain[int]:
    """After how many bytes each of the first connections is cut; the ones after them live."""
    chance = random.Random(SEED + least + most)
    return itertools.chain(iter([chance.randint(least, most) for _ in range(CUTS)]), iter(()))


async def push_all(queue: Any, numbers: range) -> list[int]:
    """Push numbers, many under way at once; one whose push failed is pushed no more. Those that
    were answered.
    """
    answered = []
    for n, push in [(n, queue.push(n)) for n in numbers]:
        try:
            await push
        except FederationLost:
            continue
        answered.append(n)
    return answered


@pytest.mark.parametrize("way", ["up", "down"])
async def test_pushes_over_a_link_that_is_cut_are_stored_in_order_or_raise(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    quick(monkeypatch)
    async with (
        far(redis_url) as both,
        both.home.queue(name := fresh()) as there,
        both.queue(name) as queue,
    ):
        setattr(both.cutter, way, cutting(5_000, 40_000))
        both.cutter.cut()
        answered = [
            n
            for turn in range(20)
            for n in await push_all(queue, range(100 * turn, 100 * turn + 100))
        ]
        stored = [message.json() async for message in there.consume(max=await there.count())]
        assert stored == sorted({*stored})  # in order, none twice
        assert {*answered} <= {*stored}
        assert 0 < len(answered) < 2000  # some did fail


@pytest.mark.parametrize("way", ["up", "down"])
async def test_reliable_consuming_over_a_link_that_is_cut_loses_nothing_that_was_not_acked(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    quick(monkeypatch)
    async with (
        far(redis_url) as both,
        both.home.queue(name := fresh()) as there,
        both.queue(name) as queue,
    ):
        await there.push_many(range(3000))
        setattr(both.cutter, way, cutting(600, 6000))
        both.cutter.cut()
        done, last = {0}, 0
        async for message in queue.consume(reliable=True):
            assert message.id > last or message.id <= max(done)  # a step back only to what was seen
            assert message.id == last + 1 or message.id - 1 in done  # no gap
            done.add(message.id)
            last = message.id
            if message.id % 20 == 0 or message.id == 3000:
                await queue.ack(message.id)
            if message.id == 3000:
                break
        assert done == set(range(3001))
        await queue.detach()
        assert await there.count() == 0
        await there.push("end")
        assert ids([message async for message in there.consume(reliable=True, max=1)]) == [3001]


async def test_every_question_over_a_link_that_is_cut_is_answered(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with far(redis_url) as both, both.queue(fresh()) as queue:
        await queue.push_many("abc")
        both.cutter.down = cutting(300, 1500)
        both.cutter.cut()
        for _ in range(150):
            assert await asyncio.gather(queue.count(), queue.exists(), queue.ttl()) == [
                3,
                True,
                MIN_RECORD_TTL_S,
            ]


async def test_attaching_and_leaving_over_a_link_that_is_cut_leaves_nothing_behind(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with far(redis_url) as both:
        both.cutter.down = cutting(100, 2000)
        both.cutter.up = cutting(200, 2000)
        for turn in range(30):
            bus: Any = both.bus
            kinds: list[Callable[[], Any]] = [
                lambda: both.queue(fresh()),
                lambda bus=bus: bus.federate(bus.channel(fresh())),
                lambda bus=bus: bus.federate(bus.pubsub(fresh())),
                lambda bus=bus: bus.federate(bus.persist(fresh())),
            ]
            async with kinds[turn % 4]() as thing:
                assert thing in both.bus._objects
        assert not both.bus._objects
        await nothing_attached(both)


async def nothing_attached(both: Far) -> None:
    """At the server, too, once it has noticed."""
    async with asyncio.timeout(60):
        # No event announces it
        while [thing for thing in both.home._objects if not repr(thing).startswith("Pubsub('bus:")]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_each_dial_gives_a_handshake_that_does_not_end_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick(monkeypatch)
    monkeypatch.setattr(sockets, "HANDSHAKE_TIMEOUTS_S", (0.0625, 0.25))
    came: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(
        lambda _, writer: came.append(writer), "127.0.0.1", 0
    ) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/bus"
        async with Bus(federate=url, federate_secret=SECRET, federate_sockets=1) as bus:
            [pool] = cast("FederationClients", bus._federation_links())._pools.values()
            said: list[str] = []
            monkeypatch.setattr(
                pool.sockets[0], "_changed", lambda: said.append(str(pool.last_error))
            )
            await until(lambda: len(said) >= 4)
        for writer in came:
            writer.close()
    given = [
        float(text.partition("no handshake within ")[2].partition(" s")[0]) for text in said[:4]
    ]
    assert given == [0.0625, 0.125, 0.25, 0.25]


async def test_calls_that_are_given_up_leave_one_opening_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_reconnector, "PATIENCE_S", 0.01)
    url = f"ws://127.0.0.1:{lasting_port()}/bus"
    async with Bus(federate=url, federate_secret=SECRET) as bus:
        queue = bus.federate(bus.queue("q"))
        for _ in range(4):  # each call begins in the step in which the one before is given up
            with pytest.raises(FederationLost):
                await queue.count()
        call = asyncio.ensure_future(queue.count())
        await asyncio.wait([call], timeout=0)
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert (
            len([name for name in names if "opening a remote object for RemoteQueue" in name]) <= 1
        )
        with pytest.raises(FederationLost):
            await call


async def test_a_push_that_is_made_late_in_an_outage_has_a_patience_of_its_own(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    monkeypatch.setattr(remote_reconnector, "PATIENCE_S", 1.0)
    lost = asyncio.Event()
    async with far(redis_url) as both, both.queue(fresh()) as queue:
        queue.on("reconnecting", lambda *_: lost.set())
        await queue.push("before")
        await both.server.aclose()
        await lost.wait()
        first, late = asyncio.ensure_future(queue.push("first")), []
        while not first.done():
            late.append(asyncio.ensure_future(queue.push("late")))
            await asyncio.sleep(0.02)
        with pytest.raises(FederationLost):
            await first
        assert not late[-1].done()
        await both.server.start()
        found = await asyncio.gather(*late, return_exceptions=True)
        failed = sum(isinstance(each, FederationLost) for each in found)
        assert found[failed:] == [2 + n for n in range(len(late) - failed)]
        assert failed < len(late) / 2  # those that were there when the first wait began
