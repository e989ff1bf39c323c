"""What ordered and shared groups of a queue have in common."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue.shared_group import SharedGroup
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import ConfigError, QueueBusy, StateError, TimeUnknown
from tests.bus.group_tools import ids, some
from tests.bus.tools import UNTIL_S, redis, stored, until
from tests.conftest import Fresh


async def test_a_group_outlives_that_another_process_makes_the_queue_anew(
    redis_url: str, fresh: Fresh
) -> None:
    async with AsyncExitStack() as stack:
        bus, other = [await stack.enter_async_context(Bus(redis_url)) for _ in range(2)]
        queue = await stack.enter_async_context(bus.queue(fresh()))
        ordered = await stack.enter_async_context(queue.group("o", start="latest"))
        shared = await stack.enter_async_context(queue.group("s", shared=True, start="latest"))
        await queue.push_many("ab")
        ours, theirs = ordered.batches(), shared.batches()
        await ordered.ack(await some(ours, 2))
        await shared.ack(await some(theirs, 2))
        async with other.queue(queue.name) as same:
            await redis(queue, "DEL", *queue.keys.all)
            await same.detach()
            await same.attach()
            await same.push_many(["c", "d", "e"])
        assert [each.text for each in await some(ours, 3)] == ["c", "d", "e"]
        assert (
            await shared.ack(await some(theirs, 3)) == []
        )  # registered again, before the other acks
        await ordered.ack(3)
        assert await stored(queue) == []


async def test_several_tasks_share_one_holder(redis_url: str, fresh: Fresh) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.queue(fresh()) as queue,
        queue.group("o") as ordered,
        queue.group("s", shared=True) as shared,
    ):
        await queue.push_many([str(n) for n in range(60)])
        for group in (ordered, shared):
            found = await asyncio.gather(*(some(group.batches(most=5), 20) for _ in range(3)))
            assert sorted(id for part in found for id in ids(part)) == list(range(1, 61))


async def test_idle_comes_also_when_the_rest_was_flushed(redis_url: str, fresh: Fresh) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.queue(fresh()) as queue,
        queue.group("s", shared=True) as shared,
        queue.group("o") as ordered,
    ):
        await queue.push_many("ab")
        await queue.flush()
        await asyncio.wait_for(asyncio.gather(shared.wait_idle(), ordered.wait_idle()), UNTIL_S)


async def test_a_queue_that_is_detached_ends_its_readers(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        for shared in (False, True):
            queue = bus.queue(fresh())
            await queue.attach()
            group = queue.group("g", shared=shared)
            with pytest.raises(StateError, match="not entered, or stopped"):
                await anext(group.batches())
            async with group:
                reading = asyncio.ensure_future(anext(group.batches()))
                await until(lambda group=group: group._lock.locked() or not group._wake.is_set())
                await queue.delete()
                with pytest.raises(StateError, match="not attached"):
                    await asyncio.wait_for(reading, UNTIL_S)


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
        assert [(each.name, each.idle) for each in queue.groups()] == [("g", True), ("o", True)]


async def test_what_makes_no_sense_is_refused(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        queue = bus.queue(fresh())
        for options, found in [
            ({"lease_s": 0.5}, "lease_s is 0.5; expected 1 to 604800 seconds"),
            ({"lease_s": "30"}, "lease_s is '30'; expected"),
            (
                {"lease": 3},
                "a group has no option 'lease'; a shared one has lease_s, tries, limit, dead",
            ),
            ({"dead": ""}, "the name of the dead-letter queue is ''; expected text"),
            ({"tries": 0}, "tries is 0; expected a whole number of at least 1"),
            ({"limit": -1}, "limit is -1; expected a whole number of at least 0"),
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
            await redis(
                queue,
                "RPUSH",
                queue.keys.messages,
                await redis(queue, "INCR", queue.keys.msgid),
                "a",
            )  # as a peer, which notes no time
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
                with pytest.raises(ConfigError, match="delay_s is -1; expected 0 to"):
                    await shared.retry(await some(shared.batches(), 1), delay_s=-1)


async def test_the_rights_of_the_page_are_enough_for_groups(fresh: Fresh) -> None:
    page = (Path(__file__).parents[2] / "docs" / "layouts.md").read_text("utf-8")
    rules, more = (
        re.search(r"ACL SETUSER spark on >secret (.*?)\n", page),
        re.search(r"Shared\s+groups need `(.*?)`", page),
    )
    assert rules
    assert more
    with EmbeddedRedis() as server:
        server.command(
            "ACL",
            "SETUSER",
            "spark",
            "on",
            ">secret",
            *rules[1].split(),
            "+unsubscribe",
            "+hexists",
            *more[1].split(),
        )
        async with (
            Bus(server.url, user="spark", password="secret") as bus,
            bus.queue(fresh()) as queue,
        ):
            await queue.push_many("abcd")
            async with queue.group("g", shared=True, tries=1) as group, queue.group("o") as ordered:
                acked, retried, extended, released = await some(group.batches(), 4)
                assert (
                    await group.ack(acked)
                    + await group.retry(retried)
                    + await group.extend(extended)
                    + await group.release(released)
                    == []
                )
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
