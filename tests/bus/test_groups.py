"""Ordered and shared groups of a queue, as programs read them: who gets what, what comes again, what becomes a dead letter."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue import Queue
from busmq_spark.bus.shared_group import SharedGroup
from busmq_spark.core import dead_letter, state
from busmq_spark.core.group import Delivery
from busmq_spark.core.message import Message
from busmq_spark.embedded import RedisServer
from busmq_spark.errors import ConfigError, MessageRefused, QueueBusy, QueueRecreated, StateError, TimeUnknown
from busmq_spark.redis_io.holder import LEASE_MS, my_token
from tests.bus.conftest import OpenBus
from tests.bus.tools import UNTIL_S, redis, renewed, stored, until
from tests.conftest import Fresh
from tests.faults.proxy import Proxy

T = TypeVar("T", Message, Delivery)


async def some(batches: AsyncIterator[list[T]], count: int) -> list[T]:
    """So many messages, in as many batches as it takes."""
    found: list[T] = []
    async with asyncio.timeout(UNTIL_S):
        while len(found) < count:
            found += await anext(batches)
    assert len(found) == count
    return found


def ids(messages: Sequence[Message | Delivery]) -> list[int]:
    return [each.id for each in messages]


async def end_leases(queue: Queue, group: str) -> None:
    """As if the leases of all messages in flight had ended."""
    _, due, _ = queue.keys.group(group)
    for id in await redis(queue, "ZRANGE", due, 0, -1):
        await redis(queue, "ZADD", due, "XX", 1, id)


# Ordered


async def test_an_ordered_group_goes_on_behind_what_it_has_acked(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        async with queue.group("billing") as group:
            await queue.push_many(["a", "b", "c", "d", "e"])
            batches = group.batches(most=2)
            assert [each.text for each in await some(batches, 4)] == ["a", "b", "c", "d"]
            await group.ack(2)
        async with queue.group("billing") as group:
            batch = await some(group.batches(), 3)
            assert ids(batch) == [3, 4, 5]
            await group.ack(batch)
            await asyncio.wait_for(group.idle(), UNTIL_S)
            later = asyncio.ensure_future(some(group.batches(), 1))
            await queue.push("f")
            assert ids(await later) == [6]
        assert await stored(queue) == [6]


async def test_the_others_stand_by_until_the_holder_leaves(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, open_bus() as other, bus.queue(fresh()) as queue, other.queue(queue.name) as same:
        await queue.push_many(["a", "b", "c"])
        async with same.group("g") as second:
            async with queue.group("g") as first:
                await group_ack(first, 2)
                waiting = asyncio.ensure_future(some(second.batches(), 1))
                await until(lambda: first.holds)
                assert (second.holds, waiting.done()) == (False, False)
                [found] = await queue.groups()
                assert (found.subscription.name, found.shared, found.unread, bool(found.subscription.reader)) == ("g", False, 1, True)
                with pytest.raises(QueueBusy, match="is read as group 'g'"):
                    await queue.group("g").seek("earliest")
            assert ids(await waiting) == [3]


async def group_ack(group: object, id: int) -> None:
    batches = group.batches()  # type: ignore[attr-defined]
    await anext(batches)
    await group.ack(id)  # type: ignore[attr-defined]


async def test_a_holder_whose_lease_ended_unnoticed_goes_on_where_it_was(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue, queue.group("g") as group:
        await queue.push_many(["a", "b", "c"])
        batches = group.batches(most=2)
        assert ids(await anext(batches)) == [1, 2]
        for step in ("ack", "read"):
            await redis(queue, "DEL", queue.keys.lease("g"))
            group._renewed = float("-inf")  # as after a pause of the process
            assert not group.holds
            if step == "ack":
                await group.ack(2)
            else:
                assert ids(await anext(batches)) == [3]
            assert await redis(queue, "GET", queue.keys.lease("g")) == group._token.encode()


async def test_what_another_has_acked_meanwhile_does_not_come_again_and_what_was_sought_does(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue, queue.group("g") as group:
        await queue.push_many("abcde")
        batches, key, another = group.batches(most=1), queue.keys.lease("g"), my_token()
        assert ids(await anext(batches)) == [1]
        await redis(queue, "SET", key, another, "PX", 600_000)
        await until(lambda: not group.holds)  # the next renewal finds it
        with pytest.raises(QueueBusy, match="is read by another as group 'g'"):
            await group.ack(1)
        waiting = asyncio.ensure_future(anext(batches))
        await queue.subscribe("keeps")
        await queue.run(state.ack_to([state.Ack(queue.keys, 3, queue._born, "")], "g"))
        assert not waiting.done()
        await queue.run(state.release(queue.keys, "g", another))
        assert ids(await asyncio.wait_for(waiting, UNTIL_S)) == [4]
        await group.ack(4)
        await redis(queue, "DEL", key)
        await queue.group("g").seek(1)
        group._renewed = float("-inf")
        assert ids(await anext(batches)) == [2]
        await renewed(queue, key)
        assert 0 < await redis(queue, "PTTL", key) <= LEASE_MS


async def test_several_tasks_share_one_holder(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue, queue.group("o") as ordered, queue.group("s", shared=True) as shared:
        await queue.push_many([str(n) for n in range(60)])
        for group in (ordered, shared):
            found = await asyncio.gather(*(some(group.batches(most=5), 20) for _ in range(3)))
            assert sorted(id for part in found for id in ids(part)) == list(range(1, 61))


async def test_stopping_while_a_call_is_under_way_gives_back_what_it_leases(redis_server: RedisServer, fresh: Fresh) -> None:
    with Proxy(redis_server.port) as proxy:
        async with Bus(proxy.url) as bus, bus.queue(fresh()) as queue, queue.group("g", shared=True) as group:
            await queue.push_many("abc")
            gate = proxy.hold(lambda command: command.name == "group_lease" and queue.keys.messages in command.keys, reply=True)
            reading = asyncio.ensure_future(anext(group.batches(), None))
            held = await asyncio.to_thread(gate.wait)
            stopping = asyncio.ensure_future(group.stop())
            gate.open()
            held.release()
            await stopping
            assert await reading is None
            found = await group.state()
            assert (found.in_flight, found.waiting) == (0, 3)
        async with Bus(proxy.url) as bus, bus.queue(queue.name) as queue, queue.group("g", shared=True) as group:
            reading = asyncio.ensure_future(anext(group.batches()))
            assert [each.tries for each in await reading] == [1, 1, 1]


async def test_a_query_and_a_program_in_one_group_exclude_each_other(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue, queue.group("q") as group:
        await queue.push("a")
        query = my_token()
        assert await queue.run(state.lease([queue.keys], "q", query, 600_000, [""])) == [query]
        waiting = asyncio.ensure_future(some(group.batches(), 1))
        await until(lambda: not group.holds)
        await queue.run(state.release(queue.keys, "q", query))
        assert ids(await asyncio.wait_for(waiting, UNTIL_S)) == [1]
        assert await queue.run(state.lease([queue.keys], "q", query, 600_000, [""])) != [query]


async def test_in_a_new_life_of_the_queue_an_ordered_group_begins_at_its_oldest(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue, queue.group("g", start="latest") as group:
        batches = group.batches()
        waiting = asyncio.ensure_future(anext(batches))
        await until(lambda: group.holds)
        await queue.push_many(["a", "b"])
        assert ids(await asyncio.wait_for(waiting, UNTIL_S)) == [1, 2]
        await redis(queue, "DEL", *queue.keys.all)
        await queue.push("new")
        with pytest.raises(QueueRecreated):
            await group.ack(2)
        assert [each.text for each in await some(batches, 1)] == ["new"]
        await group.ack(1)


# Shared


async def test_holders_divide_the_messages(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, open_bus() as other, bus.queue(fresh()) as queue, other.queue(queue.name) as same:
        await queue.push_many([{"n": n} for n in range(6)])
        async with queue.group("g", shared=True) as first, same.group("g", shared=True) as second:
            one, two = await some(first.batches(2), 2), await some(second.batches(3), 3)
            assert [each.json()["n"] for each in (*one, *two)] == [0, 1, 2, 3, 4]
            assert await second.ack(two) == await first.ack(one) == []
            await first.ack(await some(first.batches(), 1))
            await asyncio.wait_for(asyncio.gather(first.idle(), second.drained()), UNTIL_S)
        assert await queue.count() == 0


async def test_what_a_holder_has_not_settled_comes_again_when_it_stops_and_its_try_does_not_count(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        await queue.push_many("abc")
        async with queue.group("g", shared=True) as group:
            [first, *_] = await some(group.batches(), 3)
            await group.ack(first)
        async with queue.group("g", shared=True) as group:
            assert [(each.id, each.tries) for each in await some(group.batches(), 2)] == [(2, 1), (3, 1)]


async def test_an_answer_behind_the_lease_is_refused_and_told(redis_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue, queue.group("g", shared=True) as slow, queue.group("g", shared=True) as quick:
        await queue.push_many("ab")
        late = await some(slow.batches(), 2)
        await end_leases(queue, "g")
        again = await some(quick.batches(1), 1)
        assert ids(again) == [1]
        with caplog.at_level(logging.WARNING):
            assert await slow.ack(late) == late[:1]
        assert "ack came too late for id 1, " in caplog.text
        assert await quick.ack(again) == []
        assert await slow.retry(late[:1]) == late[:1]


async def test_tries_that_are_used_up_make_a_dead_letter_with_the_reason(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue, queue.group("g", shared=True, tries=2) as group, bus.queue(group.dead) as dead:
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
        last = asyncio.ensure_future(anext(batches))  # its tries are used up, so that there is nothing to read
        await asyncio.wait_for(group.idle(), UNTIL_S)
        last.cancel()
        letters = {each.id: each for each in [dead_letter.opened(message.value) for message in await dead_letters(dead, 3)]}
    assert {id: (each.value, each.tries, each.error) for id, each in letters.items()} == {
        1: (b"asked", 2, "still no route"),
        2: (b"crashed", 3, "its lease ended, and so did its tries"),
        3: (b"\xff\x00", 1, "not text"),
    }
    assert {(each.queue, each.group, each.first <= each.last) for each in letters.values()} == {(queue.name, "g", True)}


async def dead_letters(dead: Queue, count: int) -> list[Message]:
    return [message async for message in dead.consume(max=count)]


async def test_what_is_no_dead_letter_is_refused() -> None:
    for value in (b"", b"{}", b"[1]", b'{"type":"other"}', b'{"type":"busmq.dead","data":3}'):
        with pytest.raises(MessageRefused, match="is no dead letter; expected a CloudEvent"):
            dead_letter.opened(value)


async def test_a_delay_and_an_extension_are_kept(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue, queue.group("g", shared=True, lease_s=600) as group:
        await queue.push_many("ab")
        first, second = await some(group.batches(), 2)
        await group.retry(first, delay_s=3600)
        await group.extend(second, lease_s=7200)
        _, due, _ = queue.keys.group("g")
        now = await queue.server_ms()
        assert -now - 3_600_000 <= int(await redis(queue, "ZSCORE", due, 1)) <= -now - 3_000_000
        assert now + 6_600_000 <= int(await redis(queue, "ZSCORE", due, 2)) <= now + 7_200_000
        state = await group.state()
        assert (state.in_flight, state.waiting, state.unread, state.idle) == (1, 1, 0, False)


async def test_a_pause_counts_for_all_holders(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue, queue.group("g", shared=True) as group:
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
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue, queue.group("g", shared=True) as group:
        await queue.push("a")
        assert await queue.group("g", shared=True).drop()
        with pytest.raises(StateError, match="is dropped"):
            await anext(group.batches())
        assert await queue.groups() == []


async def test_in_a_new_life_of_the_queue_a_shared_group_begins_at_its_oldest(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue, queue.group("g", shared=True) as group:
        await queue.push_many("ab")
        batches = group.batches()
        old = await some(batches, 2)
        await redis(queue, "DEL", *queue.keys.all)
        await queue.push("new")
        assert await group.ack(old) == old
        assert [(each.id, each.text) for each in await some(batches, 1)] == [(1, "new")]


def test_the_same_without_a_loop(redis_url: str, fresh: Fresh) -> None:
    with Bus.sync(redis_url) as bus, bus.queue(fresh()) as queue:
        queue.push_many("abc")
        with queue.group("g", shared=True) as group:
            for batch in group.batches():
                assert group.ack(batch) == []
                if batch[-1].id == 3:
                    group.stop()
        with queue.group("o") as group:
            group.seek("latest")
        assert [(each.subscription.name, each.idle) for each in queue.groups()] == [("g", True), ("o", True)]


async def test_what_makes_no_sense_is_refused(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        queue = bus.queue(fresh())
        for options, found in [
            ({"lease_s": 0.5}, "lease_s is 0.5; expected 1 to 604800 seconds"),
            ({"tries": 0}, "tries is 0; expected a whole number of at least 1"),
            ({"limit": -1}, "limit is -1; expected a whole number of at least 1"),
            ({"dead": queue.name}, "is that queue itself"),
        ]:
            with pytest.raises(ConfigError, match=found):
                queue.group("g", shared=True, **options)  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match="tries counts for a shared group only"):
            queue.group("g", tries=3)  # type: ignore[call-overload]
        for name in ("", ":x"):
            with pytest.raises(ConfigError, match="the name of the subscription is"):
                queue.group(name)
        for name in ("a:group:b", "a:due", "a:metadata"):
            with pytest.raises(ConfigError, match=f"the name of the shared group is '{name}'"):
                queue.group(name, shared=True)
        with pytest.raises(StateError, match="not attached"):
            async with queue.group("g"):
                pass
        async with queue:
            with pytest.raises(ConfigError, match="start is 'soon'"):
                await queue.group("g", start="soon").__aenter__()
            await redis(queue, "RPUSH", queue.keys.messages, await redis(queue, "INCR", queue.keys.msgid), "a")  # as a peer, which notes no time
            with pytest.raises(TimeUnknown):
                await queue.group("g", start="-10d").__aenter__()
            async with queue.group("g") as group:
                with pytest.raises(StateError, match="entered already"):
                    await group.__aenter__()
                with pytest.raises(ConfigError, match="most is 0"):
                    await anext(group.batches(0))
                assert ids(await anext(group.batches())) == [1]
                with pytest.raises(StateError, match="behind 1, the last that was handed out"):
                    await group.ack(2)
                with pytest.raises(QueueBusy, match="has a group 'g', which is ordered"):
                    await queue.group("g", shared=True).__aenter__()
            with pytest.raises(ConfigError, match="no group 'no-such'"):
                await queue.group("no-such").state()
            async with queue.group("s", shared=True) as shared:
                assert isinstance(shared, SharedGroup)
                with pytest.raises(ConfigError, match="-1 seconds"):
                    await shared.retry(await some(shared.batches(), 1), delay_s=-1)


async def test_the_rights_of_the_page_are_enough_for_groups(fresh: Fresh) -> None:
    page = (Path(__file__).parents[2] / "docs" / "layouts.md").read_text("utf-8")
    rules, more = re.search(r"ACL SETUSER spark on >secret (.*?)\n", page), re.search(r"Shared\s+groups need `(.*?)`", page)
    assert rules
    assert more
    with RedisServer() as server:
        server.command("ACL", "SETUSER", "spark", "on", ">secret", *rules[1].split(), "+unsubscribe", "+hexists", *more[1].split())
        async with Bus(server.url, user="spark", password="secret") as bus, bus.queue(fresh()) as queue:
            await queue.push_many("abcd")
            async with queue.group("g", shared=True, tries=1) as group, queue.group("o") as ordered:
                acked, retried, extended, released = await some(group.batches(), 4)
                assert await group.ack(acked) + await group.retry(retried) + await group.extend(extended) + await group.release(released) == []
                await group.pause()
                await group.resume()
                await ordered.ack(await some(ordered.batches(), 4))
                await ordered.stop()
                await ordered.seek("latest")
            assert len(await queue.groups()) == 2
            await queue.group("g", shared=True).drop()
        assert server.command("ACL", "LOG") == []


async def test_over_federation_it_is_refused_with_what_to_do() -> None:
    async with Bus(federate="ws://127.0.0.1:9", federate_secret="x" * 20) as bus:
        far = bus.federate(bus.queue("orders"))
        with pytest.raises(ConfigError, match=r"group\('g'\) cannot be said over federation"):
            far.group("g")
        with pytest.raises(ConfigError, match=r"groups\(\) cannot be said over federation"):
            await far.groups()
