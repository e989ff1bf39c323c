"""Shared groups of a queue, as programs read them: who gets what, what comes again, what becomes a
dead letter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.queue.shared_group import DEAD_LETTER_RETRY_S
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import ConfigError, MessageRefused, QueueFull, StateError
from busmq_spark.groups import dead_letter
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.lease_token import LEASE_MS
from tests.bus.conftest import OpenBus
from tests.bus.group_tools import dead_letters, end_leases, ids, some
from tests.bus.tools import UNTIL_S, redis, stored, until
from tests.conftest import Fresh
from tests.faults.proxy import Proxy

LETTER = (
    b'{"type":"busmq.dead","data":"v","queue":"q","group":"g","error":"","firsttime":"",'
    b'"lasttime":"","tries":1,"originalid":1e999}'
)


async def test_stopping_while_a_call_is_under_way_gives_back_what_it_leases(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    with Proxy(redis_server.port) as proxy:
        async with (
            Bus(proxy.url) as bus,
            bus.queue(fresh()) as queue,
            queue.group("g", shared=True) as group,
        ):
            await queue.push_many("abc")
            gate = proxy.hold(
                lambda command: (
                    command.name == "group_lease" and queue.keys.messages in command.keys
                ),
                reply=True,
            )
            reading = asyncio.ensure_future(anext(group.batches(), None))
            held = await asyncio.to_thread(gate.wait)
            stopping = asyncio.ensure_future(group.stop())
            gate.open()
            held.release()
            await stopping
            assert await reading is None
            found = await group.state()
            assert (found.in_flight, found.waiting) == (0, 3)
        async with (
            Bus(proxy.url) as bus,
            bus.queue(queue.name) as queue,
            queue.group("g", shared=True) as group,
        ):
            reading = asyncio.ensure_future(anext(group.batches()))
            assert [each.tries for each in await reading] == [1, 1, 1]


async def test_holders_divide_the_messages(open_bus: OpenBus, fresh: Fresh) -> None:
    async with (
        open_bus() as bus,
        open_bus() as other,
        bus.queue(fresh()) as queue,
        other.queue(queue.name) as same,
    ):
        await queue.push_many([{"n": n} for n in range(6)])
        async with queue.group("g", shared=True) as first, same.group("g", shared=True) as second:
            one, two = await some(first.batches(2), 2), await some(second.batches(3), 3)
            assert [each.json()["n"] for each in (*one, *two)] == [0, 1, 2, 3, 4]
            assert await second.ack(two) == await first.ack(one) == []
            await first.ack(await some(first.batches(), 1))
            await asyncio.wait_for(
                asyncio.gather(first.wait_idle(), second.wait_drained()), UNTIL_S
            )
        assert await queue.count() == 0


async def test_unsettled_messages_come_again_when_a_holder_stops_and_the_try_does_not_count(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        await queue.push_many("abc")
        async with queue.group("g", shared=True) as group:
            [first, *_] = await some(group.batches(), 3)
            await group.ack(first)
        async with queue.group("g", shared=True) as group:
            assert [(each.id, each.tries) for each in await some(group.batches(), 2)] == [
                (2, 1),
                (3, 1),
            ]


async def test_an_answer_behind_the_lease_is_refused_and_told(
    place: dict[str, Any], fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        Bus(**place) as bus,
        bus.queue(fresh()) as queue,
        queue.group("g", shared=True) as slow,
        queue.group("g", shared=True) as quick,
    ):
        await queue.push_many("ab")
        late = await some(slow.batches(), 2)
        await end_leases(queue, "g")
        again = await some(quick.batches(1), 1)
        assert ids(again) == [1]
        with caplog.at_level(logging.WARNING):
            assert await slow.ack(late) == late[:1]
        assert "ack of id 1 is refused: its lease had ended" in caplog.text
        assert await quick.ack(again) == []
        assert await slow.retry(late[:1]) == late[:1]


async def test_a_consumer_that_takes_messages_from_under_the_group_is_told(
    place: dict[str, Any], fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        Bus(**place) as bus,
        bus.queue(fresh()) as queue,
        queue.group("g", shared=True) as group,
    ):
        await queue.push_many("abc")
        assert [message.text async for message in queue.consume(max=2)] == ["a", "b"]
        with caplog.at_level(logging.WARNING):
            assert ids(await some(group.batches(), 1)) == [3]
        assert (
            f"2 messages left queue {queue.name!r} before group 'g' had settled them: another takes"
            " them" in caplog.text
        )


async def test_tries_that_are_used_up_make_a_dead_letter_with_the_reason(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with (
        open_bus() as bus,
        bus.queue(fresh()) as queue,
        queue.group("g", shared=True, tries=2) as group,
        bus.queue(group.dead) as dead,
    ):
        await queue.push_many([b"asked", b"crashed", b"\xff\x00", b"good"])
        batches = group.batches()
        asked, crashed, rejected, good = await some(batches, 4)
        await group.retry(asked, error="no route")
        await group.reject(rejected, "not text")
        await group.ack(good)
        await end_leases(queue, "g")
        again = {each.id: each for each in await some(batches, 2)}
        assert {id: each.tries for id, each in again.items()} == {asked.id: 2, crashed.id: 2}
        await group.retry(again[asked.id], error="still no route")
        await end_leases(queue, "g")
        last = asyncio.ensure_future(
            anext(batches)
        )  # its tries are used up, so that there is nothing to read
        await asyncio.wait_for(group.wait_idle(), UNTIL_S)
        last.cancel()
        letters = {
            each.id: each
            for each in [
                dead_letter.decode_letter(message.value) for message in await dead_letters(dead, 3)
            ]
        }
    assert {id: (each.value, each.tries, each.error) for id, each in letters.items()} == {
        1: (b"asked", 2, "still no route"),
        2: (b"crashed", 2, "its lease ended, and so did its tries"),
        3: (b"\xff\x00", 1, "not text"),
    }
    assert {(each.queue, each.group, each.first <= each.last) for each in letters.values()} == {
        (queue.name, "g", True)
    }


async def test_what_is_no_dead_letter_is_refused() -> None:
    for value in (
        b"",
        b"{}",
        b"[1]",
        b'{"type":"other"}',
        b'{"type":"busmq.dead","data":3}',
        b"[" * 100_000,
        LETTER,
    ):
        with pytest.raises(MessageRefused, match="is no dead letter; expected a CloudEvent"):
            dead_letter.decode_letter(value)


async def test_a_delay_and_an_extension_are_kept(redis_url: str, fresh: Fresh) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.queue(fresh()) as queue,
        queue.group("g", shared=True, lease_s=600) as group,
    ):
        await queue.push_many("ab")
        first, second = await some(group.batches(), 2)
        await group.retry(first, delay_s=3600)
        await group.extend(second, lease_s=7200)
        _, due, *_ = queue.keys.group("g")
        now = await queue._server_ms()
        assert -now - 3_600_000 <= int(await redis(queue, "ZSCORE", due, 1)) <= -now - 3_000_000
        assert now + 6_600_000 <= int(await redis(queue, "ZSCORE", due, 2)) <= now + 7_200_000
        state = await group.state()
        assert (state.in_flight, state.waiting, state.unread, state.idle) == (1, 1, 0, False)


async def fail(queue: Queue, tries: int) -> None:
    async with queue.group("g", shared=True, tries=2) as group:
        [delivery] = await some(group.batches(), 1)
        assert delivery.tries == tries
        raise ZeroDivisionError("division by zero")


async def test_an_exception_counts_as_a_try_of_what_was_handed_out(
    redis_url: str, fresh: Fresh
) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.queue(fresh()) as queue,
        bus.queue(f"{queue.name}.dead") as dead,
    ):
        await queue.push("poison")
        for tries in (1, 2):
            with pytest.raises(ZeroDivisionError):
                await fail(queue, tries)
        [letter] = await dead_letters(dead, 1)
        assert (
            dead_letter.decode_letter(letter.value).error == "ZeroDivisionError: division by zero"
        )
        assert await stored(queue) == []


async def test_a_late_rejection_makes_no_dead_letter_and_one_that_is_said_twice_makes_one(
    redis_url: str, fresh: Fresh
) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.queue(fresh()) as queue,
        queue.group("g", shared=True) as slow,
        queue.group("g", shared=True) as quick,
    ):
        await queue.push_many("ab")
        late = await some(slow.batches(), 2)
        await end_leases(queue, "g")
        again = await some(quick.batches(1), 1)
        assert await slow.reject([*late, *late], ValueError("late")) == late[:1]
        assert await quick.ack(again) == []
        async with bus.queue(slow.dead) as dead:
            assert [
                dead_letter.decode_letter(each.value).id
                for each in await dead_letters(dead, await dead.count())
            ] == [2]


@asynccontextmanager
async def full_queue(bus: Bus, name: str) -> AsyncIterator[None]:
    full = bus.queue(name)
    await full.attach(maxsize=1)
    await full.push("full")
    yield
    await full.flush()


async def test_a_full_dead_letter_queue_holds_up_no_good_message(
    redis_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.queue(fresh()) as queue,
        queue.group("g", shared=True, tries=1) as group,
        full_queue(bus, group.dead),
    ):
        await queue.push_many(["bad", "good"])
        batches = group.batches()
        await some(batches, 2)
        await end_leases(queue, "g")
        await queue.push("better")
        assert ids(await some(batches, 1)) == [3]
        assert "no dead letter of id 1 now" in caplog.text
        assert (await group.state()).waiting == 2


async def test_what_is_rejected_is_leased_for_as_long_as_any_message_of_the_group(
    redis_url: str, fresh: Fresh
) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.queue(fresh()) as queue,
        full_queue(bus, f"{queue.name}.dead"),
    ):
        for lease_s, least_ms in ((5, -UNTIL_S * 1000), (60, 30_000)):
            async with queue.group("g", shared=True, lease_s=lease_s) as group:
                await queue.push("bad")
                [bad] = await some(group.batches(1), 1)
                with pytest.raises(QueueFull):
                    await group.reject(bad)
                assert least_ms < await remaining_ms(queue, "g") <= 1000 * lease_s
                await group.ack(bad)


async def test_a_redis_that_takes_no_dead_letter_holds_up_no_good_message(fresh: Fresh) -> None:
    with EmbeddedRedis() as server:
        async with (
            Bus(server.url) as bus,
            bus.queue(fresh()) as queue,
            queue.group("g", shared=True, tries=1) as group,
        ):
            await queue.push_many(["bad", "good"])
            batches = group.batches(1)
            await some(batches, 1)
            await end_leases(queue, "g")
            await redis(queue, "CONFIG", "SET", "maxmemory", 1)
            assert ids(await some(group.batches(2), 1)) == [2]
            await redis(queue, "CONFIG", "SET", "maxmemory", 0)
            assert (await group.state()).waiting == 1


@contextmanager
def refused(server: EmbeddedRedis, keys: QueueKeys, dead: QueueKeys, cause: str) -> Iterator[None]:
    """While this is so no dead letter can be stored: the queue for them is full, or Redis is, or
    the holder may use its own queue only.
    """
    if cause == "queue":
        server.command("HSET", dead.metadata, "ttl", 600, "maxsize", 1)
        server.command("RPUSH", dead.messages, server.command("INCR", dead.msgid), "full")  # type: ignore[arg-type]
    elif cause == "memory":
        server.command("CONFIG", "SET", "maxmemory", 1)
    else:
        server.command("ACL", "SETUSER", "holder", "resetkeys", f"~{keys.base}:*")
    yield
    server.command("LPOP", dead.messages, 2)
    server.command("CONFIG", "SET", "maxmemory", 0)
    server.command("ACL", "SETUSER", "holder", "~*")


@pytest.mark.parametrize("cause", ["queue", "memory", "rights"])
async def test_a_message_whose_dead_letter_cannot_be_stored_waits_and_has_no_more_tries(
    fresh: Fresh, cause: str
) -> None:
    """However long that lasts: the dead letter then says how often somebody tried to handle it."""
    with EmbeddedRedis() as server:
        server.command("ACL", "SETUSER", "holder", "on", ">secret", "~*", "&*", "+@all")
        async with (
            Bus(server.url, user="holder", password="secret") as bus,
            bus.queue(fresh()) as queue,
            queue.group("g", shared=True, tries=2) as group,
        ):
            await queue.push("bad")
            dead = QueueKeys(group.dead)
            for tries in (1, 2):
                assert [each.tries for each in (await group.take(9))[0]] == [tries]
                await end_leases(queue, "g")
            for _ in range(5):
                with refused(server, queue.keys, dead, cause):
                    assert (await group.take(9))[0] == []
                    found = await group.state()
                    assert (found.in_flight, found.waiting, await stored(queue)) == (0, 1, [1])
                    assert 0 < (await group.take(9))[1] <= DEAD_LETTER_RETRY_S, "it waits"
                await end_leases(queue, "g")
            assert (await group.take(9))[0] == []
            assert (await group.state()).idle
            _, letter = await redis(queue, "LRANGE", dead.messages, 0, -1)
            assert dead_letter.decode_letter(letter).tries == 2


async def test_what_a_reader_raises_is_seen_where_no_dead_letter_can_be_stored(
    redis_url: str, fresh: Fresh
) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.queue(fresh()) as queue,
        full_queue(bus, f"{queue.name}.dead"),
    ):
        await queue.push_many(["spent", "other"])
        async with queue.group("g", shared=True, tries=2) as group:
            await group.retry(await some(group.batches(1), 1))
        with pytest.raises(KeyError, match="of the reader"):  # noqa: PT012
            async with queue.group("g", shared=True) as group:
                await some(group.batches(2), 2)
                raise KeyError("of the reader")
        assert ((await group.state()).in_flight, (await group.state()).waiting) == (1, 1)


async def test_the_options_of_a_group_are_those_that_were_given_last(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        async with (
            queue.group("g", shared=True, tries=7, dead="elsewhere", limit=2),
            queue.group("g", shared=True, lease_s=60) as second,
        ):
            assert (second.tries, second.dead) == (7, "elsewhere")
            await queue.push_many("abc")
            assert len(await anext(second.batches())) == 2
            assert LEASE_MS < await remaining_ms(queue, "g") <= 60_000
        async with queue.group("g", shared=True, limit=0) as third:
            assert len(await anext(third.batches())) == 3


async def remaining_ms(queue: Queue, group: str) -> float:
    _, due, *_ = queue.keys.group(group)
    return (
        int((await redis(queue, "ZRANGE", due, 0, 0, "WITHSCORES"))[1]) - await queue._server_ms()
    )


async def test_who_stops_second_waits_for_the_first(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    with Proxy(redis_server.port) as proxy:
        async with Bus(proxy.url) as bus, bus.queue(fresh()) as queue:
            await queue.push("a")
            async with queue.group("g", shared=True) as group:
                await some(group.batches(), 1)
                gate = proxy.hold(
                    lambda command: (
                        command.name == "group_settle" and queue.keys.messages in command.keys
                    )
                )
                stopping = asyncio.ensure_future(group.stop())
                held = await asyncio.to_thread(gate.wait)
                asyncio.get_running_loop().call_later(0.05, held.release)
                gate.open()
            assert stopping.done()
            assert (await group.state()).in_flight == 0


async def test_a_pause_counts_for_all_holders(place: dict[str, Any], fresh: Fresh) -> None:
    async with (
        Bus(**place) as bus,
        bus.queue(fresh()) as queue,
        queue.group("g", shared=True) as group,
    ):
        await group.pause()
        await queue.push("a")
        reading = asyncio.ensure_future(some(group.batches(), 1))
        other = queue.group("g", shared=True)
        assert (await other.state()).paused
        await until(lambda: group._wake.is_set() is False)
        assert not reading.done()
        await other.resume()
        assert ids(await reading) == [1]
        with pytest.raises(ConfigError, match="has no shared group 'no-such'"):
            await queue.group("no-such", shared=True).pause()


async def test_a_group_that_was_dropped_ends_its_holders(redis_url: str, fresh: Fresh) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.queue(fresh()) as queue,
        queue.group("g", shared=True) as group,
    ):
        await queue.push("a")
        assert await queue.group("g", shared=True).drop()
        with pytest.raises(StateError, match="is dropped"):
            await anext(group.batches())
        assert await queue.groups() == []


async def test_in_a_new_life_of_the_queue_a_shared_group_begins_at_its_oldest(
    redis_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.queue(fresh()) as queue,
        queue.group("g", shared=True) as group,
    ):
        await queue.push_many("ab")
        batches = group.batches()
        old = await some(batches, 2)
        await redis(queue, "DEL", *queue.keys.all)
        await queue.push("new")
        assert await group.ack(old) == old
        assert (
            "ack of id 1 is refused: the queue or the group is gone, or was made anew"
            in caplog.text
        )
        assert [(each.id, each.text) for each in await some(batches, 1)] == [(1, "new")]
