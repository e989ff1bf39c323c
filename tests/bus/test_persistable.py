"""Persisted objects as an asyncio program uses them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from busmq_spark.bus.base_persisted_object import (
    BasePersistedObject,
    PersistedDataclass,
    PersistedDict,
)
from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedRedis, EmbeddedSentinel
from busmq_spark.errors import BusError, ConfigError, LinkLost, MessageRefused, StateError
from busmq_spark.objects.persisted import to_text
from busmq_spark.queue.command_generators import command
from tests.bus.conftest import OpenBus, Redis
from tests.conftest import Fresh
from tests.support import Life, wait_in_sync


@dataclass
class Job:
    status: str = "new"
    tries: int = 0
    tags: list[str] = field(default_factory=list)
    owner: str | None = None


@dataclass
class Needy:
    name: str


async def stored(thing: BasePersistedObject) -> dict[bytes, bytes]:
    server = await thing.bus.servers.locate(thing.key)
    reply = await thing.bus.servers.commands[server].execute(command("HGETALL", thing.key))
    return dict(zip(reply[0::2], reply[1::2], strict=True))


async def raw(thing: BasePersistedObject, *words: Any) -> Any:
    """A command of another client on the object's key."""
    server = await thing.bus.servers.locate(thing.key)
    return await thing.bus.servers.commands[server].execute(
        command(words[0], thing.key, *words[1:])
    )


@asynccontextmanager
async def quiet(thing: BasePersistedObject) -> AsyncIterator[None]:
    """Nothing inside may send anything."""
    links = thing.bus.servers.commands
    sent: list[Any] = []
    for link in links:
        link.run = sent.append  # type: ignore[method-assign,assignment]
    yield
    for link in links:
        del link.run  # type: ignore[method-assign]
    assert sent == []


async def renewed(thing: BasePersistedObject) -> None:
    """Returns when it has been given a longer life than it had left. It must be there all the
    time.
    """
    left = await raw(thing, "PTTL")
    while (now := await raw(thing, "PTTL")) <= left:
        assert now > 0, "it is gone, or has no end"
        left = now
        await asyncio.sleep(0.02)


# -- as a dictionary -------------------------------------------------------------------------------


async def test_what_one_saves_another_loads(open_bus: OpenBus, fresh: Fresh, redis: Redis) -> None:
    name, values = (
        fresh(),
        {
            "text": "v1",
            "number": 2,
            "flag": True,
            "nested": {"a": [1, 2]},
            "none": None,
            "é😀": "ü",
        },
    )
    async with open_bus() as here, open_bus() as there:
        mine, theirs, life = here.persist(name), there.persist(name), Life(redis, 60)
        assert not await theirs.load()
        mine.update(values)
        assert await mine.save()
        assert await theirs.load()
        assert dict(theirs) == values
        assert await stored(mine) == {key.encode(): to_text(value) for key, value in values.items()}
        assert life.covers(await raw(mine, "PTTL"))


async def test_only_what_changed_is_written_and_nothing_is_sent_when_nothing_has(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    name = fresh()
    async with open_bus() as bus:
        mine, theirs = bus.persist(name), bus.persist(name)
        mine.update({"a": 1, "b": 1})
        await mine.save()
        theirs["b"] = 2
        await theirs.save()
        mine["a"] = 3
        assert mine.dirty == {"a"}
        await mine.save()
        assert await stored(mine) == {b"a": b"3", b"b": b"2"}
        async with quiet(mine):
            assert not await mine.save()


async def test_dirty_values_win_over_loaded_ones(open_bus: OpenBus, fresh: Fresh) -> None:
    name = fresh()
    async with open_bus() as bus:
        mine, theirs = bus.persist(name), bus.persist(name)
        theirs.update({"a": "theirs", "b": "theirs"})
        await theirs.save()
        mine["a"] = "mine"
        assert await mine.load()
        assert dict(mine) == {"a": "mine", "b": "theirs"}
        await mine.save()
        assert (await stored(mine))[b"a"] == b'"mine"'


async def test_a_change_made_during_a_save_is_not_lost(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        thing = bus.persist(fresh())
        thing["a"], thing["list"] = 1, [1]
        saving = asyncio.ensure_future(thing.save())
        await asyncio.sleep(0)
        thing["a"] = 2
        thing["list"].append(2)
        await saving
        assert thing["a"] == 2
        await thing.save()
        assert await stored(thing) == {b"a": b"2", b"list": b"[1,2]"}


async def test_a_field_cannot_be_deleted_and_values_json_cannot_express_are_refused(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus:
        thing = bus.persist(fresh())
        thing["a"] = None
        with pytest.raises(StateError, match="Assign None"):
            del thing["a"]
        with pytest.raises(MessageRefused, match="field 'b'"):
            thing["b"] = object()
        await thing.save()
        assert await stored(thing) == {b"a": b"null"}


async def test_a_field_that_is_no_json_is_reported_and_left_alone(
    open_bus: OpenBus, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_bus() as bus:
        thing = bus.persist(fresh())
        await raw(thing, "HSET", "good", "1", "bad", "undefined")
        with caplog.at_level(logging.WARNING, "busmq_spark"):
            assert await thing.load()
            assert await thing.load()
        [said] = [each.getMessage() for each in caplog.records if "'bad'" in each.getMessage()]
        assert said == (
            f"persisted object {thing.name!r}: field 'bad' is skipped; what is stored is not what"
            " was expected: JSON"
        )
        assert (dict(thing), dict(thing.misfits)) == ({"good": 1}, {"bad": "undefined"})
        thing["good"] = 2
        await thing.save()
        assert await stored(thing) == {b"good": b"2", b"bad": b"undefined"}
        thing["bad"] = "mended"
        await thing.save()
        assert (await stored(thing), thing.misfits) == ({b"good": b"2", b"bad": b'"mended"'}, {})


# -- as a dataclass --------------------------------------------------------------------------------


async def test_a_scope_loads_keeps_alive_and_saves_what_changed(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    name = fresh()
    async with open_bus() as bus:
        async with bus.persist(name, Job, ttl_s=600) as job:
            assert not job.existed
            assert job.value == Job()
            job.value.tries += 1
            job.value.tags.append("urgent")
        assert await stored(job) == {b"tries": b"1", b"tags": b'["urgent"]'}
        assert not job.is_kept_alive
        async with bus.persist(name, Job) as again:
            assert again.existed
            assert again.value == Job(tries=1, tags=["urgent"])


async def test_a_scope_that_fails_saves_nothing_and_says_so(
    redis_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(job: PersistedDataclass[Job]) -> None:
        async with job:
            job.value.tries = 1
            raise ZeroDivisionError

    async with Bus(redis_url) as bus:
        job = bus.persist(fresh(), Job)
        with pytest.raises(ZeroDivisionError):
            await fail(job)
        assert await stored(job) == {}
        assert "changes of tries are not saved" in caplog.text


async def test_an_instance_brings_values_that_are_saved_and_give_way_to_a_load(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    name = fresh()
    async with open_bus() as bus:
        first = bus.persist(name, Job("ready"))
        await first.save()
        assert await stored(first) == {
            b"status": b'"ready"',
            b"tries": b"0",
            b"tags": b"[]",
            b"owner": b"null",
        }
        given = Job("other", 5)
        second = bus.persist(name, given)
        await second.load()
        assert second.value is given
        assert given == Job("ready")
        assert second.dirty == frozenset()


async def test_types_are_checked_both_ways(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        job = bus.persist(fresh(), Job)
        await raw(job, "HSET", "tries", '"three"', "status", '"ok"', "unknown", "zz")
        assert await job.load()
        assert job.value == Job("ok", 0)
        assert dict(job.misfits) == {"tries": '"three"'}
        job.value.tries = "four"  # type: ignore[assignment]
        with pytest.raises(MessageRefused, match=r"field 'tries': .*expected int, found str"):
            await job.save()
        job.value.tries = 4
        await job.save()
        assert await stored(job) == {b"tries": b"4", b"status": b'"ok"', b"unknown": b"zz"}


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (Needy, "'name' of Needy has no default"),
        (3, "no dataclass"),
        (dataclass(frozen=True)(type("F", (), {})), "frozen"),
    ],
)
def test_a_shape_that_cannot_work_is_refused_before_anything_is_sent(shape: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Bus("redis://localhost").persist("x", shape)


@pytest.mark.parametrize("ttl_s", [0, -1, 1.5])
async def test_a_ttl_is_a_whole_number_of_seconds(redis_url: str, ttl_s: Any) -> None:
    with pytest.raises(ConfigError, match="ttl_s"):
        Bus(redis_url).persist("x", ttl_s=ttl_s)
    async with Bus(redis_url) as bus:
        with pytest.raises(ConfigError, match="ttl_s"):
            await bus.persist("x").persist(ttl_s)


# -- living ----------------------------------------------------------------------------------------


async def test_a_kept_object_lives_and_one_let_go_does_not(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        kept, gone = bus.persist(fresh(), ttl_s=4), bus.persist(fresh(), ttl_s=1)
        for thing in (kept, gone):
            thing["a"] = 1
            await thing.save()
        await kept.persist()
        await gone.persist()
        gone.unpersist()
        while await raw(gone, "EXISTS"):  # noqa: ASYNC110  # no event announces it
            await asyncio.sleep(0.02)
        for _ in range(2):
            await renewed(kept)
        assert await stored(kept) == {b"a": b"1"}


async def test_touch_says_whether_it_is_there_and_persist_takes_a_new_ttl(
    open_bus: OpenBus, fresh: Fresh, redis: Redis
) -> None:
    async with open_bus() as bus:
        thing, life = bus.persist(fresh()), Life(redis, 100)
        assert not await thing.touch()
        thing["a"] = 1
        await thing.save()
        assert await thing.touch()
        await thing.persist(ttl_s=100)
        assert life.covers(await raw(thing, "PTTL"))
        life = Life(redis, 200)
        await thing.persist(ttl_s=200)
        assert life.covers(await raw(thing, "PTTL"))
        thing["a"] = 2
        await raw(thing, "EXPIRE", 100)
        await thing.save()
        assert life.covers(await raw(thing, "PTTL"))


async def test_unpersist_forgets_values_and_deletes_nothing(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        thing = bus.persist(fresh())
        await thing.persist()
        thing["a"] = 1
        await thing.save()
        thing["a"] = 2
        thing.unpersist()
        assert (dict(thing), thing.dirty, thing.is_kept_alive) == ({}, frozenset(), False)
        async with quiet(thing):
            assert not await thing.save()
        assert await stored(thing) == {b"a": b"1"}


async def test_leaving_the_bus_ends_the_keep_alive(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        thing = bus.persist(fresh())
        await thing.persist()
    assert not thing.is_kept_alive
    assert asyncio.all_tasks() == {asyncio.current_task()}
    thing["a"] = 1
    with pytest.raises(StateError, match="bus"):
        await thing.save()


# -- faults ----------------------------------------------------------------------------------------


async def test_an_object_that_redis_lost_is_written_again_unless_another_has_done_so(
    fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedRedis() as server:
        async with Bus(server.url) as bus:
            thing = bus.persist(fresh(), ttl_s=1)
            thing.update({"a": 1, "b": 1, "c": 1})
            await thing.save()
            await thing.persist()
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
            # No event announces it
            while "is gone from Redis" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await thing.persist(ttl_s=600)  # from now on nothing may expire, however long it takes
            await raw(thing, "HSET", "b", '"theirs"')
            thing["c"] = 2
            await thing.save()
            assert await stored(thing) == {b"a": b"1", b"b": b'"theirs"', b"c": b"2"}


async def test_what_a_failed_save_sent_is_saved_by_the_next(fresh: Fresh) -> None:
    with EmbeddedRedis() as server:
        async with Bus(server.url) as bus:
            thing = bus.persist(fresh())
            thing["a"] = 1
            for link in bus.servers.commands:
                link._patience_s = 0.1
            await asyncio.to_thread(server.kill)
            with pytest.raises(LinkLost):
                await thing.save()
            assert thing.dirty == {"a"}
            await asyncio.to_thread(server.restart)
            assert await thing.save()
            assert await stored(thing) == {b"a": b"1"}


async def test_a_dead_server_of_three_does_not_keep_the_others_from_being_touched(
    fresh: Fresh,
) -> None:
    servers = [EmbeddedRedis().start() for _ in range(3)]
    try:
        async with Bus(",".join(server.url for server in servers)) as bus:
            things: dict[int, PersistedDict] = {}
            while len(things) < 2:
                thing = bus.persist(fresh(), ttl_s=4)
                things.setdefault(await bus.servers.locate(thing.key), thing)
            for thing in things.values():
                thing["a"] = 1
                await thing.save()
                await thing.persist()
            (dead, _), (_, alive) = things.items()
            servers[dead].kill()
            touched = asyncio.Event()
            counted: list[bool] = []

            def count(found: bool) -> None:
                counted.append(found)
                if len(counted) == 4:  # longer than it would live
                    touched.set()

            alive._on_touch_reply = count  # type: ignore[method-assign]
            await touched.wait()
            assert all(counted)
            assert await stored(alive) == {b"a": b"1"}
    finally:
        for server in servers:
            server.stop()


@pytest.mark.slow
async def test_an_object_outlives_a_fail_over_of_sentinel(fresh: Fresh) -> None:
    with EmbeddedSentinel() as group:
        async with (
            Bus(",".join(group.urls), layout="sentinel") as bus,
            bus.persist(fresh()) as thing,
        ):
            thing["a"] = 1
            await thing.save()
            await asyncio.to_thread(wait_in_sync, group.master)
            group.kill_master()
            thing["b"] = 2
            await thing.save()
            assert await stored(thing) == {b"a": b"1", b"b": b"2"}


async def test_errors_of_redis_reach_the_caller(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        thing = bus.persist(fresh())
        await raw(thing, "SET", "not a hash")
        thing["a"] = 1
        with pytest.raises(BusError, match="WRONGTYPE"):
            await thing.save()
        with pytest.raises(BusError, match="WRONGTYPE"):
            await thing.load()
        assert thing.dirty == {"a"}
