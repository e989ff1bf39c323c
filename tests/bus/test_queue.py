"""The queue as an asyncio program uses it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import ConfigError, MessageRefused, QueueFull, StateError
from busmq_spark.queue import queue as flows
from tests.bus.conftest import OpenBus
from tests.bus.tools import LONG_S, UNTIL_S, gone, redis, renewed, stored, until
from tests.conftest import Fresh


async def test_messages_come_in_the_order_of_the_pushes(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        ids = [queue.push(n) for n in range(50)]
        assert await ids[-1] == 50
        assert [message.json() async for message in queue.consume(max=50)] == list(range(50))


async def test_a_message_of_a_new_incarnation_is_delivered_though_its_id_came_before(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, asyncio.timeout(UNTIL_S):
        queue, listening = bus.queue(fresh()), asyncio.Event()
        await queue.attach(ttl_s=LONG_S)
        messages = queue.consume()
        queue.once("consuming", lambda _: listening.set())
        for life in range(3):
            coming = asyncio.ensure_future(anext(messages))
            await listening.wait()
            await queue.push(life)
            message = await coming
            assert (message.id, message.json()) == (1, life)
            await queue.run(flows.delete(queue.keys))


# Attaching and keeping alive


async def test_attaching_creates_the_queue_or_joins_it_as_it_is(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    name = fresh()
    async with open_bus() as bus, open_bus() as other:
        queue, there = bus.queue(name), other.queue(name)
        seen: list[Any] = []
        for event in ("attaching", "attached", "detaching", "detached"):
            queue.on(event, lambda *args, event=event: seen.append((event, *args)))
        assert not await queue.exists()
        assert (await queue.ttl(), await queue.maxsize(), await queue.find()) == (None, 0, None)
        assert not await queue.attach(ttl_s=7, maxsize=3)
        assert await there.attach(ttl_s=99, maxsize=0)
        assert (there.ttl_s, await there.ttl(), await there.maxsize(), await there.find()) == (
            7,
            7,
            3,
            "local",
        )
        await queue.detach()
        await queue.detach()
        assert seen == [("attaching",), ("attached", False), ("detaching",), ("detached",)]
        assert await queue.exists()


async def test_an_attached_queue_stays_and_one_without_attachments_expires(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        kept, left = bus.queue(fresh()), bus.queue(fresh())
        await kept.attach(ttl_s=4)
        await left.attach(ttl_s=1)
        for queue in (kept, left):
            await queue.push("x")
        await left.detach()
        await renewed(kept, kept.keys.metadata, kept.keys.messages, kept.keys.msgid)
        await gone(left)
        consumption = kept.consume(reliable=True)
        assert (await anext(consumption)).id == 1
        await renewed(kept, kept.keys.metadata, kept.keys.msgid, kept.keys.toack)
        assert await redis(kept, "LLEN", kept.keys.toack) == 2


async def test_what_a_consumer_holds_lives_as_long_as_the_queue(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        kept = bus.queue(fresh())
        await kept.attach(ttl_s=4)
        await kept.push_many("abc")
        consumption = kept.consume()
        assert (await anext(consumption)).id == 1
        [record] = kept._keys_to_touch
        for _ in range(2):
            await renewed(kept, kept.keys.metadata, kept.keys.msgid, record)
        await kept.stop()
        assert await stored(kept) == [2, 3]


async def test_a_queue_that_vanished_is_created_again_by_a_client_that_is_attached(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, open_bus() as other:
        queue, there = bus.queue(fresh()), other.queue(fresh())
        await queue.attach(ttl_s=3, maxsize=5)
        await queue.push("x")
        there = other.queue(queue.name)
        deleted: list[str] = []
        there.on("deleted", lambda: deleted.append("deleted"))
        await there.attach()
        await there.delete()
        assert deleted == ["deleted"]
        assert await queue.push("first of a new life") == 1
        assert await queue.maxsize() == 5
        await there.delete()
        while not await there.exists():  # noqa: ASYNC110  # the keep-alive notices
            await asyncio.sleep(0.02)


async def test_calls_at_the_wrong_time_say_so(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        queue = bus.queue(fresh())
        for call in (lambda: queue.push(1), lambda: queue.push_many([1]), queue.consume):
            with pytest.raises(StateError, match=r"not attached\. Call attach"):
                call()
        with pytest.raises(StateError):
            await queue.ack(1)
        with pytest.raises(StateError):
            await queue.set_metadata({"a": 1})
        await queue.attach()
        with pytest.raises(StateError, match="attached already"):
            await queue.attach()
        queue.consume(reliable=True)
        with pytest.raises(ConfigError, match="id to ack"):
            await queue.ack("3")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="belongs to the bus"):
            await queue.set_metadata({"ttl": 3})
        with pytest.raises(ConfigError, match="emits no event"):
            queue.on("mesage", print)
    with pytest.raises(ConfigError, match="ttl_s is 0"):
        async with open_bus() as bus:
            await bus.queue(fresh()).attach(ttl_s=0)


# Pushing


async def test_values_are_stored_as_npm_busmq_stores_them(open_bus: OpenBus, fresh: Fresh) -> None:
    values = [
        "text",
        "",
        "héllo 😀",
        b"\x00\xff",
        {"b": 1, "a": [None, True]},
        [1, 2],
        None,
        42,
        True,
    ]
    kept = [
        b"text",
        b"",
        "héllo 😀".encode(),
        b"\x00\xff",
        b'{"b":1,"a":[null,true]}',
        b"[1,2]",
        b"null",
        b"42",
        b"true",
    ]
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        for value in values:
            await queue.push(value)
        assert [message.value async for message in queue.consume(max=len(values))] == kept
        with pytest.raises(MessageRefused):
            queue.push(object())


async def test_many_messages_and_single_ones_keep_the_order_of_the_calls(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        queue.push(0)
        many = queue.push_many(range(1, 2501))
        last = queue.push(2501)
        assert list(await many) == list(range(2, 2502))
        assert await last == 2502
        assert queue.pushed == 2502
        assert [message.json() async for message in queue.consume(max=2502)] == list(range(2502))
        assert list(await queue.push_many([])) == []


async def test_a_batch_is_sent_at_once_and_what_is_short_with_what_else_its_turn_brings(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as one, bus.queue(fresh()) as two:
        sent: list[bytes] = []
        # One server: no cluster
        transport = bus.servers.commands[0].wire._transport  # type: ignore[union-attr]
        monkeypatch.setattr(
            transport, "write", lambda data, write=transport.write: (sent.append(data), write(data))
        )
        pushes = [one.push("short of one"), two.push("short of two")]
        assert sent == []
        await asyncio.gather(*pushes)
        assert [data for data in sent if b"short of one" in data and b"short of two" in data]
        sent.clear()
        batches = [queue.push_many(["x" * 100] * 500) for queue in (one, two)]
        assert len(sent) == 2
        last = [queue.push("last") for queue in (one, two)]
        assert await asyncio.gather(*last) == [502, 502]
        assert [each.result() for each in batches] == [list(range(2, 502))] * 2


async def test_ids_of_many_messages_are_right_although_others_push_in_between(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with (
        open_bus() as bus,
        open_bus() as other,
        bus.queue(fresh()) as queue,
        other.queue(queue.name) as there,
    ):
        mine, theirs = await asyncio.gather(
            queue.push_many(["m"] * 5000), there.push_many(["t"] * 5000)
        )
        values = {message.id: message.value async for message in queue.consume(max=10_000)}
        assert [values[id] for id in mine] == [b"m"] * 5000
        assert [values[id] for id in theirs] == [b"t"] * 5000


async def test_a_full_queue_takes_what_fits_and_says_what_is_left(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    name = fresh()
    async with open_bus() as bus, open_bus() as other:
        queue, there = bus.queue(name), other.queue(name)
        await queue.attach(maxsize=3)
        await there.attach()  # what counts is what is stored, not what this one wishes
        with pytest.raises(QueueFull) as raised:
            await there.push_many(["a", "b", "c", *"x" * 2497])  # more than one call may bring
        assert (raised.value.details["left"], raised.value.details["maxsize"]) == (2497, 3)
        with pytest.raises(QueueFull):
            await queue.push("f")
        assert [message.text async for message in queue.consume(max=3)] == ["a", "b", "c"]
        assert await queue.push("g") == 4


async def test_the_result_of_a_push_may_be_ignored_and_detaching_waits_for_it(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    name = fresh()
    async with open_bus() as bus, bus.queue(name) as queue:
        for n in range(3000):
            queue.push(n)
    async with open_bus() as bus, bus.queue(name) as queue:
        assert await queue.count() == 3000


# Asking


async def test_flush_empties_the_queue_and_ids_go_on(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        assert not await queue.flush()
        await queue.push_many("abc")
        assert await queue.flush()
        assert await queue.count() == 0
        assert await queue.push("d") == 4


async def test_delete_removes_everything(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        queue = bus.queue(fresh())
        await queue.attach()
        await queue.push("a")
        await queue.delete()
        assert not queue.attached
        assert not await queue.exists()
        assert await redis(queue, "EXISTS", *queue.keys.all) == 0
        await queue.attach()
        assert await queue.push("b") == 1


async def test_metadata_of_ones_own_stands_beside_that_of_the_bus(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        await queue.set_metadata({"owner": "me", "level": 3})
        found = await queue.metadata()
        assert (found["owner"], found["level"], found["source"], found["ttl"]) == (
            "me",
            "3",
            "local",
            str(flows.MIN_RECORD_TTL_S),
        )
        assert await bus.queue(fresh()).metadata() == {}


async def test_a_discoverable_queue_is_announced_when_attached_and_at_every_touch(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        said: list[bytes | None] = []
        queue = bus.queue(fresh("é"))
        await bus.servers.pubsub[0].subscribe("bus:pubsub:bus:notifications", said.append)
        await queue.attach(ttl_s=1, discoverable=True)
        mine = f'{{"event":"queue","key":"{queue.keys.metadata}","ttl":1}}'.encode()
        await until(lambda: said.count(mine) >= 3)
        assert (await queue.metadata())["discover"] == "true"
