"""The channel as an asyncio program uses it, both sides in Python."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.errors import ConfigError, ProtocolError, QueueFull, StateError
from busmq_spark.queue import queue as flows
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys, channel_queue
from busmq_spark.queue.message import Message
from tests.bus.channels import TEXTS, Seen, pair
from tests.bus.conftest import OpenBus
from tests.bus.tools import until
from tests.conftest import Fresh
from tests.layouts import servers_of
from tests.stored import read_at


@pytest.mark.parametrize("first", ["connect", "listen"])
async def test_both_sides_see_each_other_in_either_order_of_connecting(
    open_bus: OpenBus, fresh: Fresh, first: str
) -> None:
    async with open_bus() as bus:
        one, two, seen_one, seen_two = pair(bus, fresh())
        await (one.connect() if first == "connect" else one.listen())
        assert one.connected
        assert not two.connected
        await seen_one.exactly("connect")
        await (two.listen() if first == "connect" else two.connect())
        await seen_two.exactly("connect", "remote_connect")
        await seen_one.exactly("remote_connect")


async def test_messages_arrive_in_order_with_the_ids_that_sending_gave(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        one, two, _, seen = pair(bus, fresh())
        await one.connect()
        await two.listen()
        ids = [await sent for sent in [one.send(text) for text in TEXTS]]
        assert ids == list(range(2, len(TEXTS) + 2))  # 1 is the word that we are here
        await seen.exactly("connect", "remote_connect", *zip(ids, TEXTS, strict=True))


async def test_what_came_behind_a_word_of_the_peer_is_handed_out_behind_its_event(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, open_bus() as other:
        peer, mine, seen = other.channel(name := fresh()), bus.channel(name), list[str]()
        await peer.connect()
        await peer.send("first")
        await peer.disconnect()
        await peer.send_to("remote", "later")
        for event in ("remote_connect", "remote_disconnect"):
            mine.on(event, partial(seen.append, event))
        await mine.listen()
        async for message in mine:
            seen.append(message.text)
            await bus.queue(fresh()).count()  # whatever takes as long as one call
            if message.text == "later":
                break
        assert seen == ["remote_connect", "first", "remote_disconnect", "later"]
        await mine.disconnect()


async def test_what_is_no_text_is_sent_as_json(open_bus: OpenBus, fresh: Fresh) -> None:
    async with (
        open_bus() as bus,
        await bus.channel(name := fresh()).connect() as one,
        await bus.channel(name).listen() as two,
    ):
        await one.send({"ü": [1, None]})
        assert (await anext(two.messages())).json() == {"ü": [1, None]}


async def test_a_handler_that_fails_when_connecting_leaves_the_channel_as_it_is(
    redis_url: str, fresh: Fresh
) -> None:
    def fail() -> None:
        raise ValueError("no")

    async with Bus(redis_url) as bus:
        name = fresh()
        here, there = bus.channel(name), bus.channel(name)
        here.on("connect", fail)
        await here.listen()
        await there.connect()
        there.send("x")
        async for message in here:
            assert message.text == "x"
            break


async def test_iterating_gets_every_message_and_ends_with_the_channel(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        name = fresh()
        async with bus.channel(name) as one:
            for text in TEXTS:
                one.send(text)
            two = await bus.channel(name).listen()
            seen = Seen(two, messages=False)
            await one.end()
            assert [message.text async for message in two] == TEXTS
            await seen.exactly("remote_connect", "disconnect", "end")
            assert [message async for message in two] == []
            assert not two.connected


async def test_messages_wait_until_they_are_taken(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        name = fresh()
        one, two = await bus.channel(name).connect(), await bus.channel(name).listen()
        seen = Seen(two, messages=False)
        for text in "abcd":
            one.send(text)
        await seen.exactly("remote_connect")
        assert two._connection is not None
        await until(two._connection.inbox._offered.is_set)
        taken: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        two.once("message", taken.set_result)
        assert (await taken).text == "a"
        assert [(await anext(two.messages())).text for _ in range(2)] == ["b", "c"]
        await two.disconnect()
        await until(
            lambda: (
                len([task for task in asyncio.all_tasks() if "reading channel" in task.get_name()])
                == 1
            )
        )  # the reader of the other side
        async with await bus.channel(name).listen() as three:
            assert (await anext(three.messages())).text == "d"


async def test_a_wait_for_a_message_that_is_cancelled_loses_none(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        name = fresh()
        one, two = await bus.channel(name).connect(), await bus.channel(name).listen()
        received = []
        waiting = asyncio.create_task(anext(two.messages()))
        for n in range(200):
            one.send(str(n))
            await asyncio.sleep(0)  # a turn of the loop, no time
            waiting.cancel()  # at any moment of the way
            await asyncio.wait([waiting])
            received += [] if waiting.cancelled() else [waiting.result()]
            waiting = asyncio.create_task(anext(two.messages()))
        received.append(await waiting)
        received += [await anext(two.messages()) for _ in range(200 - len(received))]
        assert [message.text for message in received] == [str(n) for n in range(200)]


async def test_what_is_sent_while_the_peer_is_away_waits_for_it(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        one, two, seen_one, seen_two = pair(bus, fresh())
        await one.connect()
        await two.listen()
        await seen_two.until("remote_connect")
        await two.disconnect()
        await seen_one.until("remote_connect", "remote_disconnect")
        await one.send("while away")
        await seen_two.exactly("disconnect")
        await two.listen()
        await seen_two.exactly(
            "connect", "remote_connect", (3, "while away")
        )  # npm busmq would not say remote:connect again (Q12)
        await seen_one.exactly("remote_connect")


async def test_coming_and_going_is_seen_every_time(
    open_bus: OpenBus, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer's answer to leaving is for the next connection, not for the one that just ends,
    however long that takes.
    """
    async with open_bus() as bus:
        one, two, seen_one, seen_two = pair(bus, fresh())
        await one.connect()
        for _ in range(5):
            await two.listen()
            await seen_two.until("connect", "remote_connect")
            assert two._connection is not None
            slow = two._connection.incoming
            monkeypatch.setattr(slow, "detach", partial(slowly, slow, slow.detach))
            await two.disconnect()
            await seen_two.exactly("disconnect")
            await seen_one.until("remote_connect", "remote_disconnect")


async def slowly(queue: Queue, detach: Callable[[], Awaitable[None]]) -> None:
    for _ in range(30):
        await queue.count()
    await detach()


async def test_listening_again_reads_the_same_queue(open_bus: OpenBus, fresh: Fresh) -> None:
    """npm busmq swaps the roles at every call (Q9)."""
    async with open_bus() as bus:
        name = fresh()
        channel = bus.channel(name, "server", "client")
        for expected in ("one", "two"):
            await channel.listen()
            await channel.send_to("client", expected)
            assert (await anext(channel.messages())).text == expected
            await channel.disconnect()
        assert (channel.local, channel.remote) == ("server", "client")
        assert await bus.queue(channel_queue("client", name)).count() == 0


async def test_the_end_reaches_both_sides(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        one, two, seen_one, seen_two = pair(bus, fresh())
        await one.connect()
        await two.listen()
        await seen_one.until("remote_connect")
        await one.send("last")
        await one.end()
        await seen_one.exactly("disconnect")
        await seen_two.exactly("connect", "remote_connect", (2, "last"), "disconnect", "end")
        assert not one.connected
        assert not two.connected
        await one.end()
        await one.disconnect()
        assert seen_one.all == []


async def test_sending_to_a_role_needs_no_connection(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        name = fresh()
        assert await bus.channel(name).send_to("server", "first") == 1
        async with bus.channel(name, "server", "client") as server:
            seen = Seen(server)
            assert await bus.channel(name).send_to("server", "second") == 2
            await seen.exactly((1, "first"), (2, "second"))


async def test_what_is_no_frame_is_an_error_and_reading_goes_on(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        name = fresh()
        async with (
            bus.queue(channel_queue("local", name)) as queue,
            await bus.channel(name).connect(reliable=True) as channel,
        ):
            seen = Seen(channel)
            for value in (
                "",
                ":",
                ":2",
                "garbage",
                ":9:x",
                ":é:x",
                b"\xff\xfe\xfd",
                ":12:x",
                ":2:good",
            ):
                await queue.push(value)
            await seen.until((9, "good"))
            await queue.push(":0:")
            [error] = await seen.some()
            assert isinstance(error, ProtocolError)
            assert (error.details["id"], error.details["found"]) == (10, "':0:'")
            await channel.ack(9)
            assert (
                await bus.servers.commands[queue.server].execute(
                    command("EXISTS", queue.keys.toack)
                )
                == 0
            )  # they do not come again


async def test_a_full_peer_refuses_messages_and_learns_of_us_all_the_same_later(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        one, two, seen_one, seen_two = pair(bus, fresh())
        async with bus.queue(channel_queue("remote", one.name)) as peers:
            pass
        await bus.servers.commands[peers.server].run(
            flows.set_metadata(peers.keys, {"maxsize": "2"}, 30)
        )
        await one.connect()
        await one.send("a")
        with pytest.raises(QueueFull):
            await one.send("b")
        await one.disconnect()
        await one.connect()
        connect, disconnect, untold, unannounced, again = await seen_one.some(5)
        assert (connect, disconnect, again) == ("connect", "disconnect", "connect")
        assert isinstance(untold, QueueFull)
        assert isinstance(unannounced, QueueFull)
        await two.listen()
        await seen_two.exactly("connect", "remote_connect", (2, "a"))


async def test_what_needs_a_connection_says_so(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        channel = bus.channel(fresh())
        missing = pytest.raises(
            StateError, match=r"not connected\. Call connect\(\) or listen\(\) first"
        )
        with missing:
            channel.send("x")
        with missing:
            await channel.ack(1)
        with missing:
            await anext(channel.messages())


async def test_wrong_calls_say_what_to_do(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, bus.channel(fresh()) as channel:
        with pytest.raises(StateError, match="connected already"):
            await channel.listen()
        with pytest.raises(StateError, match="not reliable"):
            await channel.ack(1)
        with pytest.raises(ConfigError, match="emits no event 'remote:connect'"):
            channel.on("remote:connect", print)
        with pytest.raises(ConfigError, match="last counts only"):
            await bus.channel(fresh()).connect(last=3)


async def test_leaving_the_bus_disconnects_and_leaves_no_task(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    before = asyncio.all_tasks()
    async with open_bus() as bus, open_bus() as other:
        one, two, _, _ = pair(bus, name := fresh())
        await one.connect()
        await two.listen(reliable=True)
        async with await other.channel(name, "third", "remote").connect():
            one.send("x")
    assert asyncio.all_tasks() == before
    assert not one.connected
    assert not two.connected
    async with open_bus() as bus:
        queue = QueueKeys(channel_queue("remote", name), bus.options.layout == "cluster")
        server = await bus.servers.locate(queue.metadata)
        stored = await bus.servers.commands[server].run(read_at(queue, 0, 99))
        assert b":3:" in [message.value for message in stored]  # one had no reader any more


def test_without_a_loop_it_is_the_same(
    layout: str, request: pytest.FixtureRequest, fresh: Fresh
) -> None:
    name = fresh()
    with (
        Bus.sync(**servers_of(layout, request.getfixturevalue)) as bus,
        bus.channel(name) as one,
        bus.channel(name).listen(reliable=True) as two,
    ):
        assert (one.connected, two.connected, one.name) == (True, True, name)
        assert [one.send(text) for text in "ab"] == [2, 3]
        assert one.send_to("local", "to myself") > 1
        messages = iter(two)
        assert [next(messages).text for _ in "ab"] == ["a", "b"]
        two.ack(3)
        one.end()
        assert list(two) == []
