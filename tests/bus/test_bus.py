"""The bus as a scope: what it says of its servers, how it begins, and that nothing is left of
it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedRedis, EmbeddedStandaloneServers
from busmq_spark.errors import BusError, ConfigError, LinkLost, StateError, Unauthorized
from busmq_spark.queue.keys import QueueKeys, server_index
from busmq_spark.redis_io import endpoint
from busmq_spark.redis_io.async_link import AsyncLink
from tests.bus.conftest import OpenBus
from tests.bus.tools import UNTIL_S, NoText, stored, until
from tests.conftest import Fresh
from tests.redis_io.conftest import absent


def connections(server: EmbeddedRedis) -> int:
    """Of clients of ours."""
    return str(server.command("CLIENT", "LIST")).count("name=busmq_spark")


async def test_nothing_survives_the_scope(fresh: Fresh) -> None:
    with EmbeddedRedis() as server:
        before = asyncio.all_tasks()
        async with Bus(server.url) as bus:
            queue, there = bus.queue(fresh()), bus.queue(fresh())
            await queue.attach()
            await there.attach()
            there.each(lambda message: None)
            bus._spawn(asyncio.Event().wait(), "something of the user's")
            for n in range(100):
                queue.push(n)
            await anext(queue.consume())
            assert connections(server) > 1
        assert asyncio.all_tasks() == before
        await until(lambda: connections(server) == 0)
        async with Bus(server.url) as bus, bus.queue(queue.name) as queue:
            assert await stored(queue) == list(range(2, 101))


async def test_a_bus_may_be_opened_again_and_not_twice_at_once(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    bus = open_bus()
    with pytest.raises(StateError, match="Use it inside"):
        await bus.queue(fresh()).exists()
    for _ in range(2):
        async with bus, bus.queue(fresh()) as queue:
            assert await queue.push("x") == 1
            with pytest.raises(StateError, match="open already"):
                await bus.__aenter__()
    assert not bus.online


async def test_online_and_offline_call_coroutine_functions_too(open_bus: OpenBus) -> None:
    seen: list[Any] = []

    async def slowly(error: BusError | None) -> None:
        await asyncio.sleep(
            0.01
        )  # nothing is waited for: this handler takes its time, and leaving the bus must not
        seen.append(("offline", error))

    bus = open_bus()
    bus.on("online", lambda: seen.append("online"))
    bus.on("offline", slowly)
    async with bus:
        assert bus.online
        assert seen == ["online"]
    assert seen == ["online", ("offline", None)]


async def test_offline_names_the_refusal_whichever_task_met_it_first(open_bus: OpenBus) -> None:
    refusal = Unauthorized(url="redis://127.0.0.1", reason="WRONGPASS")
    seen: list[BusError | None] = []

    async def refused() -> None:
        raise refusal

    bus = open_bus()
    bus.on("offline", seen.append)
    with pytest.raises(Unauthorized):  # noqa: PT012  # a scope ends with it
        async with bus:
            bus._spawn(refused(), "meeting a refusal")
            await asyncio.Event().wait()
    assert seen == [refusal]


async def test_a_body_that_raises_raises_what_it_raised(open_bus: OpenBus, fresh: Fresh) -> None:
    with pytest.raises(ValueError, match="mine") as raised:  # a scope ends with it
        async with open_bus() as bus, bus.queue(fresh()):
            raise ValueError("mine") from KeyError("why")
    assert isinstance(raised.value.__cause__, KeyError)
    assert isinstance(raised.value, ValueError)


async def test_cancelling_the_body_leaves_the_scope(open_bus: OpenBus, fresh: Fresh) -> None:
    name, begun = fresh(), asyncio.Event()

    async def body() -> None:
        async with open_bus() as bus, bus.queue(name) as queue:
            await queue.push_many(range(9))
            async for message in queue.consume():
                if message.id == 4:
                    begun.set()
                    await asyncio.Event().wait()

    task = asyncio.ensure_future(body())
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    async with open_bus() as bus, bus.queue(name) as queue:
        assert await stored(queue) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    "kind", [ZeroDivisionError, SystemExit, GeneratorExit, asyncio.CancelledError, NoText]
)
async def test_what_a_handler_of_an_event_raises_is_logged_and_ends_nothing(
    open_bus: OpenBus, fresh: Fresh, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    async def broken_later(existed: bool) -> None:
        await asyncio.sleep(0)
        seen.append("later")
        raise kind

    def broken(existed: bool) -> None:
        seen.append("at once")
        raise kind

    async with open_bus() as bus:
        queue = bus.queue(fresh())
        queue.on("attached", broken_later)
        queue.on("attached", broken)
        queue.on("attached", lambda existed: seen.append("well"))
        await queue.attach()
        await until(lambda: len(seen) == 3)
        assert await queue.push("goes on") == 1
    assert sorted(seen) == ["at once", "later", "well"]
    assert caplog.text.count("a handler of 'attached' failed") == 2
    assert caplog.text.count("in broken") == 2  # the tracebacks


async def test_a_handler_that_nobody_would_iterate_is_refused(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async def generator(existed: bool) -> AsyncIterator[int]:
        yield 1

    with pytest.raises(ConfigError, match="asynchronous generator"):
        open_bus().queue(fresh()).on("attached", generator)


async def test_handlers_may_be_called_once_and_taken_away(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        queue, seen = bus.queue(fresh()), []
        queue.once("attached", lambda existed: seen.append("once"))
        always = queue.on("attached", lambda existed: seen.append("on"))
        for _ in range(2):
            await queue.attach()
            await queue.detach()
        queue.off("attached", always)
        queue.off("attached", always)
        await queue.attach()
        assert seen == ["once", "on", "on"]


# What is wrong is said


def test_an_unknown_setting_is_refused_with_the_nearest_known() -> None:
    with pytest.raises(ConfigError, match="did you mean 'layout'"):
        Bus("redis://localhost", layuot="direct")
    with pytest.raises(ConfigError, match="expected one of direct, sentinel, cluster"):
        Bus("redis://localhost", layout="ring")


@pytest.mark.parametrize(
    "setting",
    [
        {"federate_sockets": 2.5},
        {"federate_sockets": -3},
        {"federate_sockets": True},
    ],
)
def test_a_number_that_makes_no_sense_is_refused(setting: dict[str, Any]) -> None:
    [name] = setting
    with pytest.raises(ConfigError, match=rf"{name}'? is .*; expected a whole number"):
        Bus("redis://localhost", **setting)


@pytest.mark.usefixtures("impatient")
async def test_no_server_is_an_error_that_names_it() -> None:
    nowhere = absent()
    with pytest.raises(LinkLost, match=str(nowhere.port)):
        async with Bus(f"redis://127.0.0.1:{nowhere.port}"):
            pass


async def test_a_wrong_password_is_an_error_at_once_and_is_not_shown() -> None:
    with EmbeddedRedis(password="right-password") as server:
        with pytest.raises(Unauthorized) as raised:
            async with Bus(f"redis://:wrong-password@127.0.0.1:{server.port}"):
                pass
        assert "wrong-password" not in str(raised.value)
        async with Bus(server.url) as bus:
            assert bus.online
            assert "right-password" not in repr(bus.options)


# One of three is down


@pytest.fixture
def three() -> Any:
    with EmbeddedStandaloneServers(3, aof=True) as group:
        yield group


async def test_a_queue_warns_once_that_its_server_is_unreachable(fresh: Fresh) -> None:
    heard: list[Exception] = []
    with EmbeddedRedis() as server:
        async with Bus(server.url) as bus, bus.queue(fresh()) as queue:
            await queue.delete()
            await queue.attach(ttl_s=1)
            queue.on("error", heard.append)
            server.kill()
            await until(lambda: heard)
            server.restart()
            await until(lambda: bus.online)
            await queue.push("x")
    assert [type(error) for error in heard] == [LinkLost]


async def test_what_was_assumed_without_a_server_is_asked_again_when_it_is_back(
    three: EmbeddedStandaloneServers, fresh: Fresh
) -> None:
    keys = QueueKeys(fresh())
    home = server_index(keys.metadata, 3)
    elsewhere = (home + 1) % 3
    three.servers[elsewhere].command("HSET", keys.metadata, "ttl", 60)
    three.servers[elsewhere].kill()
    async with Bus(",".join(three.urls)) as bus:
        assert await bus.servers.locate(keys.metadata) == home
        three.servers[elsewhere].restart()
        await until(lambda: bus.servers.ready[elsewhere])
        assert await bus.servers.locate(keys.metadata) == elsewhere


async def test_while_one_of_three_is_down_the_others_work_and_what_hangs_on_it_resumes(
    three: EmbeddedStandaloneServers, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "PATIENCE_S", UNTIL_S)  # of what hangs
    events: list[str] = []
    bus = Bus(",".join(three.urls))
    for event in ("online", "offline", "error"):
        bus.on(event, lambda *args, event=event: events.append(event))
    async with bus:
        by_server = {}
        while len(by_server) < 3:
            queue = bus.queue(fresh())
            await queue.attach(ttl_s=15, discoverable=True)
            by_server[queue.server] = queue
        seen: list[tuple[int, int]] = []
        for server, queue in by_server.items():
            queue.each(lambda message, server=server: seen.append((server, message.id)))
        await until(lambda: all(queue.consuming for queue in by_server.values()))
        three.servers[0].kill()
        await until(lambda: "error" in events)
        assert not bus.online
        hanging = asyncio.ensure_future(by_server[0].set_metadata({"late": 1}))
        for n in range(1, 4):
            for server in (1, 2):
                assert await by_server[server].push(n) == n
        await until(lambda: len(seen) == 6)
        while True:  # a new object for a living server works as ever
            queue = bus.queue(fresh())
            try:
                await asyncio.wait_for(queue.attach(), 0.5)
                break
            except (TimeoutError, LinkLost):
                continue
        three.servers[0].restart()
        await hanging
        assert (await by_server[0].metadata())["late"] == "1"
        assert await by_server[0].push("back") == 1
        await until(lambda: (0, 1) in seen)
        await until(lambda: events.count("online") == 2)
    assert events == ["online", "error", "online", "offline"]


async def test_a_bus_opens_while_one_of_three_is_down(
    three: EmbeddedStandaloneServers, caplog: pytest.LogCaptureFixture
) -> None:
    three.servers[1].kill()
    events: list[str] = []
    bus = Bus(",".join(three.urls))
    bus.on("online", lambda: events.append("online"))
    with caplog.at_level(logging.WARNING, logger="busmq_spark"):
        async with bus:
            assert not bus.online
            assert str(three.servers[1].port) in caplog.text
            three.servers[1].restart()
            await until(lambda: bus.online)
    assert events == ["online"]


async def test_leaving_a_bus_whose_server_is_gone_does_not_take_long(fresh: Fresh) -> None:
    with EmbeddedRedis() as server:
        async with Bus(server.url) as bus:
            for _ in range(3):
                queue = bus.queue(fresh())
                await queue.attach()
                await queue.push_many("abc")
                await anext(queue.consume())
            server.pause()
            for link in (*bus.servers.commands, *bus.servers.takes):
                assert isinstance(link, AsyncLink)
                assert link.wire is not None
                link._reply_s = link.wire._reply_s = 2.0
            for n in range(10):
                queue.push(n)
            async with asyncio.timeout(30):
                await bus.__aexit__(None, None, None)
            server.resume()
            await bus.__aenter__()
