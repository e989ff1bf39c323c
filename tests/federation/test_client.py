"""Objects of another bus as a program uses them: what is special when they are behind a federation
server. What they share with local ones is tested by the contract in tests/bus/.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import (
    ConfigError,
    FederationLost,
    FederationRefused,
    MessageRefused,
    QueueFull,
    StateError,
)
from busmq_spark.federation.client import remote_reconnector
from busmq_spark.federation.client import socket as sockets
from busmq_spark.federation.client.messaging import RemoteChannel
from busmq_spark.federation.client.remote_object_connection import RemoteObjectConnection
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.rights import Grants
from busmq_spark.queue.message import Message
from tests.bus.tools import ids, until
from tests.conftest import Fresh
from tests.federation.far import far, quick
from tests.federation.tools import SECRET
from tests.support import PATIENCE_S

WRONG = "not-the-right-horse"


# -- a bus without Redis ---------------------------------------------------------------------------


async def test_a_bus_that_only_federates_needs_no_redis_and_says_so(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUSMQ_REDIS_URL", "redis://127.0.0.1:1")
    async with far(redis_url) as both:
        assert not both.bus.online
        queue = both.bus.queue(fresh())
        for call in (
            queue.attach,
            queue.count,
            both.bus.pubsub("p").subscribe,
            both.bus.persist("r").load,
            lambda: both.bus.channel("c").connect(),
        ):
            with pytest.raises(StateError, match=r"a bus without Redis.*bus\.federate"):
                await call()
        async with both.bus.federate(queue) as same:
            assert await same.push("x") == 1


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"federate": "redis://h/bus"}, "begins with 'redis'"),
        ({"federate": "ws://h/bus?secret=abc"}, "more than a path"),
        ({"federate": "ws://h/bus", "federate_secret": None}, "no secret"),
        ({"federate": "wss://h/bus", "federate_tls_ca": "/nowhere.pem"}, "no file"),
    ],
)
async def test_a_bad_address_is_an_error_before_anything_is_connected(
    settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        async with Bus(**{"federate_secret": SECRET, **settings}):
            pass
    assert "abc" not in str(raised.value)


async def test_federating_names_the_server_or_knows_the_only_one(redis_url: str) -> None:
    async with Bus(redis_url) as bus:
        with pytest.raises(ConfigError, match="no URL"):
            bus.federate(bus.queue("q"))
        with pytest.raises(ConfigError, match="a str cannot be federated"):
            bus.federate("q", "ws://127.0.0.1:1/bus", secret=SECRET)


# -- who is let in ---------------------------------------------------------------------------------


async def test_a_wrong_secret_is_final_and_shown_nowhere(
    redis_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with far(redis_url, federate_secret=WRONG) as both:
            queue = both.queue(fresh())
            with pytest.raises(FederationRefused, match="401") as raised:
                await queue.attach()
            dialled = both.cutter.connections
            with pytest.raises(FederationRefused):
                await queue.count()
            assert both.cutter.connections == dialled == 1
            shown = [
                *traceback.format_exception(raised.value),
                repr(queue),
                repr(both.bus.options),
                repr(both.bus),
                caplog.text,
            ]
    assert WRONG not in " ".join(shown)
    assert SECRET not in caplog.text


async def test_a_secret_comes_from_the_call_a_table_or_the_environment(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with far(redis_url) as both:
        url = both.server.url
        async with Bus(
            federate=url, federate_secret={url: SECRET, "ws://elsewhere/bus": WRONG}
        ) as bus:
            assert not await bus.federate(bus.queue(fresh())).exists()
        async with Bus(redis_url) as bus:
            assert not await bus.federate(bus.queue(fresh()), url, secret=SECRET).exists()
            with pytest.raises(ConfigError, match="no secret"):
                bus.federate(bus.queue(fresh()), url)
            monkeypatch.setenv("BUSMQ_FEDERATION_SECRET", SECRET)
            assert not await bus.federate(bus.queue(fresh()), url).exists()


async def test_what_a_secret_may_not_do_is_refused_to_who_asks(
    redis_url: str, fresh: Fresh
) -> None:
    name = fresh("shut")
    keyring = Keyring(
        {"reader": (SECRET, Grants.parse({"read": ["open*"], "write": ["open*"]}, "here"))}
    )
    async with far(redis_url, keyring) as both:
        queue = both.queue(name)
        with pytest.raises(FederationRefused):
            await queue.attach()
        assert not queue.attached
        async with both.queue(fresh("open")) as allowed:
            assert await allowed.push("x") == 1


async def test_what_may_not_be_consumed_ends_the_consumption_with_the_refusal(
    redis_url: str, fresh: Fresh
) -> None:
    keyring = Keyring({"writer": (SECRET, Grants.parse({"write": ["*"]}, "here"))})
    async with far(redis_url, keyring) as both, both.queue(fresh()) as queue:
        assert await queue.push("x") == 1
        with pytest.raises(FederationRefused):
            await anext(queue.consume())


# -- while the server is unreachable ---------------------------------------------------------------


async def test_a_server_that_is_away_is_an_error_that_names_it_after_a_while(
    fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_reconnector, "PATIENCE_S", 0.3)
    async with Bus(federate="ws://127.0.0.1:1/bus", federate_secret=SECRET) as bus:
        queue = bus.federate(bus.queue(fresh()))
        for call in (
            queue.attach,
            queue.count,
            bus.federate(bus.channel("c")).connect,
            lambda: bus.federate(bus.pubsub("p")).publish("x"),
        ):
            with pytest.raises(FederationLost, match=r"127\.0\.0\.1:1/bus"):
                await call()
        assert not queue.attached


async def test_a_server_that_went_silent_is_found_by_the_heartbeat(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "HEARTBEAT_INTERVAL_S", 0.05)
    async with far(redis_url) as both, both.queue(fresh()) as queue:
        both.cutter.hush()
        with monkeypatch.context() as impatient:
            impatient.setattr(sockets, "SILENCE_TIMEOUT_S", 2.0)
            with pytest.raises(FederationLost):
                await queue.push("into the void")
        assert await queue.push("after it") == 1


async def test_what_waits_while_the_bus_is_left_fails_and_a_bus_may_be_entered_again(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(federate="ws://127.0.0.1:1/bus", federate_secret=SECRET) as bus:
        waiting = [
            asyncio.ensure_future(bus.federate(bus.queue(fresh())).count()) for _ in range(2)
        ]
        await until(lambda: bus._links._pools and len(asyncio.all_tasks()) > 6)
    for each in waiting:
        with pytest.raises((FederationLost, StateError)):
            await each
    async with far(redis_url) as both:
        bus = Bus(federate=both.server.url, federate_secret=SECRET)
        queue = bus.federate(bus.queue(fresh()))
        for turn in range(2):
            async with bus, queue:
                assert await queue.push("x") == turn + 1


# -- coming back -----------------------------------------------------------------------------------


async def test_listeners_and_state_outlive_the_link(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with far(redis_url) as both, both.queue(fresh()) as queue:
        seen: list[Any] = []
        both_times = asyncio.Event()
        queue.on("reconnecting", lambda error: seen.append(type(error)))
        queue.once("reconnected", lambda: seen.append("once"))
        queue.on("reconnected", lambda: (seen.append("back"), len(seen) > 4 and both_times.set()))
        queue.once("detached", lambda: seen.append("detached"))
        await queue.set_metadata({"mine": "yes"})
        for _ in range(2):
            both.cutter.cut()
            assert (await queue.metadata())["mine"] == "yes"  # asked again by itself
            await until(lambda: queue.handle.remote is not None)
            assert await queue.push("x") > 0
        await both_times.wait()
        await queue.detach()
        assert seen == [FederationLost, "once", "back", FederationLost, "back", "detached"]


async def test_a_consumption_goes_on_with_what_is_left(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with far(redis_url) as both, both.queue(fresh()) as queue:
        await queue.push_many(range(30))
        consumption = queue.consume(max=20, prefetch=5)
        seen = [await anext(consumption) for _ in range(5)]  # all of a part: nothing is under way
        await until(lambda: consumption._remote_state.name == "IDLE")
        both.cutter.cut()
        seen += [message async for message in consumption]
        assert ids(seen) == list(range(1, 21))
        assert await queue.count() == 10


async def test_a_reader_that_removes_nothing_goes_on_behind_the_last_one_seen(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with (
        far(redis_url) as both,
        both.queue(name := fresh()) as queue,
        both.home.queue(name) as there,
    ):
        await there.push_many(range(10))
        reader = queue.consume(remove=False, index=2)
        assert [(await anext(reader)).id for _ in range(8)] == list(range(3, 11))
        lost = asyncio.Event()
        queue.on("reconnecting", lambda _: lost.set())
        both.cutter.cut()
        await lost.wait()
        removed = [
            message async for message in there.consume(max=4)
        ]  # the positions of the others shift
        assert ids(removed) == [1, 2, 3, 4]
        await there.push_many("ab")
        assert [(await anext(reader)).id for _ in range(2)] == [11, 12]


async def test_reliable_messages_that_were_not_acked_come_again(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with far(redis_url) as both, both.queue(fresh()) as queue:
        await queue.push_many(range(5))
        consumption = queue.consume(reliable=True)
        assert [(await anext(consumption)).id for _ in range(4)] == [1, 2, 3, 4]
        await queue.ack(2)
        lost = asyncio.Event()
        queue.on("reconnecting", lambda _: lost.set())
        both.cutter.cut()
        await lost.wait()
        assert [(await anext(consumption)).id for _ in range(3)] == [3, 4, 5]
        await queue.ack(5)
        assert await queue.count() == 0
        await queue.stop()
        again = queue.consume(reliable=True)
        await queue.push("x")
        assert (await anext(again)).id == 6


async def test_an_ack_that_lost_its_link_is_given_by_the_next(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with far(redis_url) as both, both.queue(name := fresh()) as queue:
        await queue.push_many(range(3))
        seen = ids([message async for message in queue.consume(reliable=True, max=3)])
        lost = asyncio.Event()
        queue.on("reconnecting", lambda _: lost.set())
        both.cutter.cut()
        await lost.wait()
        await queue.ack(seen[1])
        await queue.detach()
        async with both.home.queue(name) as there:
            assert (await anext(there.consume(reliable=True))).id == 3


async def test_what_was_acked_into_a_dead_link_does_not_come_again(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with far(redis_url) as both, both.queue(fresh()) as queue:
        await queue.push_many(range(3))
        consumption = queue.consume(reliable=True)
        assert [(await anext(consumption)).id for _ in range(3)] == [1, 2, 3]
        both.cutter.hush()
        acking = asyncio.ensure_future(queue.ack(2))
        await asyncio.sleep(0)  # a turn of the loop, no time: it is under way
        acking.cancel()  # the ack is not repeated
        both.cutter.cut()
        assert (await anext(consumption)).id == 3
        await queue.stop()


async def test_a_subscription_and_a_channel_come_back(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with far(redis_url) as both:
        bus, name = both.bus, fresh()
        async with (
            bus.federate(bus.pubsub(name)) as news,
            await bus.federate(bus.channel(name)).listen(reliable=True) as channel,
            both.home.channel(name) as peer,
        ):
            again = asyncio.Event()
            news.on("subscribed", again.set)
            peer.send("a")
            assert (await anext(channel.messages())).text == "a"
            both.cutter.cut()
            await again.wait()
            await both.home.pubsub(name).publish("heard")
            assert (await anext(aiter(news))).text == "heard"
            peer.send("b")
            assert [(await anext(channel.messages())).text for _ in range(2)] == [
                "a",
                "b",
            ]  # it was not acked
            assert await channel.send("to the peer") > 0
            assert (await anext(peer.messages())).text == "to the peer"


async def test_a_message_that_comes_before_the_word_that_the_channel_is_back_wakes_who_waits(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    restore = RemoteChannel._restore

    async def slowly(channel: RemoteChannel, line: RemoteObjectConnection) -> None:
        await restore(channel, line)
        await until(
            lambda: (
                channel._state.name == "JOINING"
                or any(isinstance(item, Message) for item in channel._received)
            )
        )

    monkeypatch.setattr(RemoteChannel, "_restore", slowly)
    async with far(redis_url) as both:
        there = both.bus.channel(fresh())
        async with (
            await both.bus.federate(there).listen(reliable=True) as channel,
            both.home.channel(there.name) as peer,
        ):
            peer.send("a")
            assert (await anext(channel.messages())).text == "a"
            both.cutter.cut()
            assert (await asyncio.wait_for(anext(channel.messages()), PATIENCE_S)).text == "a"


# -- limits ----------------------------------------------------------------------------------------


async def test_a_slow_reliable_reader_stops_the_server_and_gets_every_message_once(
    redis_url: str, fresh: Fresh
) -> None:
    async with far(redis_url) as both, both.queue(name := fresh()) as queue:
        async with both.home.queue(name) as there:
            await there.push_many(range(6000))
        consumption = queue.consume(reliable=True)
        seen, most = [], 0
        async for message in consumption:
            seen.append(message.id)
            most = max(most, len(consumption._buffer))
            if message.id % 50 == 0:
                await queue.ack(message.id)
            if message.id == 6000:
                break
        assert seen == list(range(1, 6001))
        assert 1000 <= most < 4000


async def test_numbers_of_callbacks_are_used_again(redis_url: str, fresh: Fresh) -> None:
    async with far(redis_url) as both, both.queue(fresh()) as queue:
        for _ in range(5):
            await queue.push_many(range(1500))
            await queue.count()
        assert queue.handle.remote._next < 1100


async def test_of_many_that_do_not_fit_a_beginning_is_stored_although_others_make_room(
    redis_url: str, fresh: Fresh
) -> None:
    async with (
        far(redis_url) as both,
        both.home.queue(name := fresh()) as there,
        both.queue(name) as queue,
    ):
        await there.delete()
        await there.attach(maxsize=3)
        await queue.detach()
        await queue.attach()
        taken: list[int] = []
        there.each(lambda message: taken.append(message.json()), prefetch=1)
        for _ in range(5):
            try:
                await queue.push_many(range(400))
                stored = 400
            except QueueFull as full:
                stored = 400 - full.details["left"]
            await until(lambda stored=stored: len(taken) == stored)
            assert taken == list(range(stored))
            taken.clear()


async def test_bytes_that_are_no_text_are_refused_before_they_are_sent(
    redis_url: str, fresh: Fresh
) -> None:
    async with far(redis_url) as both, both.queue(fresh()) as queue:
        with pytest.raises(MessageRefused, match="federation carries text"):
            queue.push_many(["a", b"\xff"])
        assert await queue.count() == 0
        assert await queue.push(b"\xc3\xa9 \x00") == 1
        assert (await anext(queue.consume())).value == b"\xc3\xa9 \x00"


async def test_leaving_the_bus_detaches_over_there_and_leaves_no_task(
    redis_url: str, fresh: Fresh
) -> None:
    before = asyncio.all_tasks()
    async with far(redis_url) as both:
        queue = both.queue(fresh())
        await queue.attach()
        queue.each()
        await until(lambda: queue.consuming)
    assert asyncio.all_tasks() == before
    assert not queue.attached
    with pytest.raises(StateError, match="bus"):
        await queue.count()


def test_without_a_loop_it_is_the_same(redis_url: str, fresh: Fresh) -> None:
    from tests.bus.federated import SECRET as THEIRS
    from tests.bus.federated import serving

    with (
        serving(redis_url) as url,
        Bus.sync(federate=url, federate_secret=THEIRS) as bus,
        bus.federate(bus.queue(fresh())) as queue,
    ):
        assert (queue.push({"n": 1}), queue.push_many(["a", "b"])) == (1, [2, 3])
        assert [(message.id, message.text) for message in queue.consume(max=3)] == [
            (1, '{"n":1}'),
            (2, "a"),
            (3, "b"),
        ]
        record = bus.federate(bus.persist(fresh()))
        record["a"] = [1]
        assert record.save()
        assert record["a"] == [1]
