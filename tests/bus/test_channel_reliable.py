"""The reliable channel: every message until it is acked, in order, whatever dies."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.channel import Channel
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import QueueBusy, StateError
from busmq_spark.queue import queue as flows
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys, channel_queue
from tests.bus.channels import Seen, pair
from tests.bus.conftest import OpenBus
from tests.bus.tools import UNTIL_S, until
from tests.conftest import Fresh
from tests.layouts import servers_of

ROOT = Path(__file__).parents[2]


async def unacked(bus: Bus, name: str, role: str) -> list[int]:
    """The ids of the frames that the client with this role has taken and not acked."""
    keys = QueueKeys(channel_queue(role, name), bus.options.layout == "cluster")
    link = bus.servers.commands[await bus.servers.locate(keys.metadata)]
    return [int(id) for id in (await link.execute(command("LRANGE", keys.toack, 0, -1)))[0::2]]


async def next_texts(channel: Channel, many: int) -> list[str]:
    async with asyncio.timeout(UNTIL_S):
        return [(await anext(channel.messages())).text for _ in range(many)]


async def test_a_message_of_a_reliable_channel_acks_itself(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        one, two = bus.channel(name := fresh()), bus.channel(name)
        await two.listen(reliable=True)
        await one.connect()
        for text in "abc":
            await one.send(text)
        async with asyncio.timeout(UNTIL_S):
            await anext(two.messages())
            await (await anext(two.messages())).ack()
        await two.disconnect()
        await two.listen(reliable=True)
        assert await next_texts(two, 1) == ["c"]


async def test_a_control_frame_never_acks_a_message(open_bus: OpenBus, fresh: Fresh) -> None:
    """npm busmq acks both messages with the word that the peer has come back (Q11)."""
    async with open_bus() as bus:
        one, two, seen, seen_two = pair(bus, name := fresh())
        await two.listen(reliable=True)
        await one.connect()
        await one.send("a")
        await one.disconnect()
        await one.connect()
        await one.send("b")
        await seen_two.until((5, "b"))
        assert await unacked(bus, name, "remote") == [2, 3, 4, 5]
        await two.ack(2)
        assert await unacked(bus, name, "remote") == [
            5
        ]  # both control frames went along with the message before them
        await two.ack(5)
        assert await unacked(bus, name, "remote") == []
        await one.disconnect()
        await seen.until("remote_connect", "disconnect", "disconnect")
        await seen_two.until("remote_disconnect")
        assert await unacked(bus, name, "remote") == []  # nothing was waiting for the user's ack


async def test_what_was_not_acked_comes_again_in_order_after_a_disconnect(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        name = fresh()
        one, two = await bus.channel(name).connect(), bus.channel(name)
        for text in "abcdef":
            one.send(text)
        async with await two.listen(reliable=True):
            assert await next_texts(two, 4) == list("abcd")
            await two.ack(3)
        one.send("g")
        async with await two.listen(reliable=True):
            assert await next_texts(two, 5) == list("cdefg")
        async with await two.listen(reliable=True, last=5):
            assert await next_texts(two, 3) == list("efg")


async def test_messages_behind_the_last_one_handed_over_are_not_acked_with_it(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        name = fresh()
        one, two = await bus.channel(name).connect(), bus.channel(name)
        for text in "abc":
            await one.send(text)
        async with await two.listen(reliable=True):
            assert await next_texts(two, 1) == ["a"]
            await two.ack(1000)
        async with await two.listen(reliable=True):
            assert await next_texts(two, 2) == ["b", "c"]


async def test_what_came_before_the_end_can_be_acked_after_it(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        one, two, _, seen = pair(bus, name := fresh())
        await one.connect()
        await one.send("a")
        await one.end()
        await two.listen(reliable=True)
        await seen.until((2, "a"), "end")
        assert await unacked(bus, name, "remote") == [2, 3]
        await two.ack(2)
        assert await unacked(bus, name, "remote") == []


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_a_side_that_is_cancelled_twice_while_it_waits_leaves_nothing_attached(
    redis_url: str, fresh: Fresh, turns: int
) -> None:
    async with Bus(redis_url) as bus, Bus(redis_url) as other:
        name = fresh()
        await bus.channel(name).listen(reliable=True)
        waiting = asyncio.create_task(other.channel(name).listen(reliable=True))
        await until(
            lambda: len(other._objects) == 2
        )  # both queues, and then the other reader is waited for
        waiting.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)  # a turn of the loop, no time
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not other._objects


async def test_one_side_has_one_reliable_reader_and_the_next_one_waits(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, open_bus() as other:
        name = fresh()
        one, first, second = (
            await bus.channel(name).connect(),
            bus.channel(name),
            other.channel(name),
        )
        await first.listen(reliable=True)
        await one.send("a")
        with pytest.raises(QueueBusy):
            await second.listen(reliable=True, wait=False)
        assert not second.connected
        assert not other._objects  # nothing stays attached
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await second.listen(reliable=True)
        waiting = asyncio.create_task(second.listen(reliable=True))
        assert await next_texts(first, 1) == ["a"]
        await first.disconnect()
        await waiting
        assert await next_texts(second, 1) == ["a"]


async def test_a_reader_whose_lease_went_to_another_says_so_and_leaves(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus:
        channel = bus.channel(name := fresh())
        seen = Seen(channel)
        await channel.connect(reliable=True)
        await bus.servers.commands[0].execute(
            command("SET", QueueKeys(channel_queue("local", name)).lease(""), "another")
        )
        [_, error, left] = await seen.some(3)
        assert isinstance(error, QueueBusy)
        assert left == "disconnect"
        with pytest.raises(QueueBusy):
            await anext(channel.messages())
        with pytest.raises(StateError):
            channel.send("x")


@asynccontextmanager
async def process(
    name: str, how: str, last: int, settings: dict[str, Any]
) -> AsyncIterator[asyncio.subprocess.Process]:
    arguments = ("-m", "tests.bus.channel_process", name, how, str(last), json.dumps(settings))
    started = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def lines(running: asyncio.subprocess.Process, many: int) -> list[str]:
    assert running.stdout is not None
    async with asyncio.timeout(UNTIL_S):
        return [(await running.stdout.readline()).decode().strip() for _ in range(many)]


async def test_a_killed_reader_is_followed_by_one_that_gets_the_rest_in_order(
    layout: str, request: pytest.FixtureRequest, fresh: Fresh
) -> None:
    settings = servers_of(layout, request.getfixturevalue)
    async with Bus(**settings) as bus, await bus.channel(name := fresh()).connect() as one:
        for n in range(2, 7):
            await one.send(f"é{n}")
        async with process(name, "listen", 3, settings) as killed:
            assert await lines(killed, 5) == [f"{n} é{n}" for n in range(2, 7)]
            await one.disconnect()  # what comes now is taken and never handed over
            await one.connect()
            await one.send("late")
            killed.kill()
            await killed.wait()
        async with process(name, "listen", 0, settings) as second:
            assert await lines(second, 4) == [*(f"{n} é{n}" for n in range(4, 7)), "9 late"]
            second.kill()
            await second.wait()
        two = bus.channel(name)
        async with await two.listen(reliable=True):
            assert await next_texts(two, 4) == ["é4", "é5", "é6", "late"]
            await two.ack(9)


async def test_the_sender_may_be_killed_and_nothing_that_was_confirmed_as_stored_is_lost(
    layout: str, request: pytest.FixtureRequest, fresh: Fresh
) -> None:
    settings = servers_of(layout, request.getfixturevalue)
    async with Bus(**settings) as bus:
        two = bus.channel(name := fresh())
        async with process(name, "connect", 0, settings) as peer:
            await two.listen(reliable=True)
            await two.send("a")
            assert await lines(peer, 1) == ["2 a"]
            peer.kill()
            await peer.wait()
        await two.send("b")
        async with process(name, "connect", 3, settings) as peer:
            assert await lines(peer, 2) == ["2 a", "3 b"]
        await two.disconnect()


@pytest.mark.parametrize("kept", [True, False], ids=["with its data", "empty"])
async def test_a_channel_goes_on_when_redis_was_killed_and_comes_back(
    kept: bool, fresh: Fresh
) -> None:
    with EmbeddedRedis() as server:
        async with Bus(server.url) as bus:
            one, two, _, seen = pair(bus, fresh())
            await one.connect()
            await two.listen(reliable=True)
            await one.send("before")
            await seen.until((2, "before"))
            await two.ack(2)
            if kept:
                await bus.servers.commands[0].execute(command("SAVE"))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
            await bus.servers.commands[0].execute(
                command("PING")
            )  # the first push on a broken connection fails: whether it is stored is unknown
            sent = await one.send("after")
            async with asyncio.timeout(UNTIL_S):
                assert await seen.some() == [(sent, "after")]
            await two.ack(sent)
            keys = QueueKeys(channel_queue("remote", one.name))
            assert await bus.servers.commands[0].run(flows.count(keys)) == 0
            assert await bus.servers.commands[0].execute(command("EXISTS", keys.toack)) == 0
