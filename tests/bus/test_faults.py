"""What breaks is mended without a word of the program: consuming goes on, what was stored comes
once and in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedCluster, EmbeddedRedis, EmbeddedSentinel
from busmq_spark.errors import BusError, LinkLost, ServerFull, Unauthorized
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.pubsub_connection import PubSubConnection
from tests.bus.lost_servers import kill_in_sync
from tests.bus.tools import until
from tests.bus.traffic import Traffic
from tests.conftest import Fresh
from tests.faults.proxy import Proxy
from tests.moves import Move

pytestmark = pytest.mark.fault
both = pytest.mark.parametrize("reliable", [False, True], ids=["unreliable", "reliable"])
QUICK_S = 3
"""A reply that takes longer, in ms, means that the server is gone: less than usual, and more than a
busy machine keeps anybody waiting.
"""


@pytest.fixture(scope="module")
def durable() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(aof=True) as server:
        yield server


@both
async def test_a_redis_killed_and_restarted_with_its_data_costs_a_pause(
    durable: EmbeddedRedis, fresh: Fresh, reliable: bool
) -> None:
    async with Traffic(Bus(durable.url), Bus(durable.url), fresh(), reliable=reliable) as traffic:
        for _ in range(2):
            await asyncio.to_thread(durable.kill)
            await asyncio.to_thread(durable.restart)
            await traffic.flows()
        await traffic.finish()


@both
async def test_a_redis_that_comes_back_empty_is_filled_and_emptied_again(
    fresh: Fresh, reliable: bool
) -> None:
    with EmbeddedRedis() as server:
        async with Traffic(Bus(server.url), Bus(server.url), fresh(), reliable=reliable) as traffic:
            await asyncio.to_thread(server.kill)
            before = traffic.sent
            await asyncio.to_thread(server.restart)
            await traffic.flows()
            await traffic.finish(since=before)


async def test_what_is_published_when_the_bus_is_online_again_is_received(
    fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, gate, pings = PubSubConnection._connect, asyncio.Event(), list[int]()
    gate.set()

    async def late(connection: PubSubConnection) -> None:
        await gate.wait()
        await connect(connection)

    monkeypatch.setattr(PubSubConnection, "_connect", late)
    with EmbeddedRedis() as server:
        async with Bus(server.url) as bus, bus.pubsub(fresh()) as news:
            ping, online = bus.servers.commands[0].ping, asyncio.Event()

            async def counted() -> None:
                await ping()
                pings.append(1)

            monkeypatch.setattr(bus.servers.commands[0], "ping", counted)
            bus.on("online", online.set)
            for n in range(2):
                gate.clear()
                await asyncio.to_thread(server.kill)
                await until(lambda: not bus.online)
                online.clear()
                pings.clear()
                await asyncio.to_thread(server.restart)
                await until(lambda: len(pings) > 1)  # commands have a connection, and news has none
                assert not online.is_set()
                gate.set()
                await online.wait()
                await news.publish(n)
                assert (await anext(aiter(news))).json() == n


@both
async def test_a_redis_that_is_full_refuses_pushes_and_can_be_drained(
    fresh: Fresh, reliable: bool
) -> None:
    with EmbeddedRedis(maxmemory="6mb") as server:
        async with Bus(server.url) as producer, Bus(server.url) as consumer:
            queue = producer.queue(fresh())
            await queue.attach()
            with pytest.raises(ServerFull, match="drain"):
                await queue.push_many([b"x" * 10_000] * 2000)
            stored = await queue.count()
            async with consumer.queue(queue.name) as there:
                taken = [
                    message.id async for message in there.consume(reliable=reliable, max=stored)
                ]
                assert taken == list(range(1, stored + 1))
                if reliable:
                    await there.ack(stored)
                assert await queue.push("more") == stored + 1
            await queue.detach()


@both
async def test_scripts_flushed_all_the_time_change_nothing(fresh: Fresh, reliable: bool) -> None:
    with EmbeddedRedis() as server:
        async with Traffic(Bus(server.url), Bus(server.url), fresh(), reliable=reliable) as traffic:
            for _ in range(50):
                await asyncio.to_thread(server.command, "SCRIPT", "FLUSH")
            await traffic.flows(300)
            await traffic.finish()


async def test_late_packets_of_a_link_that_went_silent_do_no_harm(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    async with asyncio.TaskGroup() as together:  # it takes the time of a reply twice
        for reliable in (False, True):
            together.create_task(go_silent(redis_server, fresh(), reliable))


async def go_silent(redis_server: EmbeddedRedis, name: str, reliable: bool) -> None:
    with Proxy(redis_server.port) as proxy:
        there = Bus(proxy.url, reply_timeout_s=QUICK_S)
        offline: list[BusError | None] = []
        there.on("offline", offline.append)
        async with Traffic(Bus(redis_server.url), there, name, reliable=reliable) as traffic:
            for replies in (False, True):  # requests first, then replies
                gate = proxy.hold(lambda command: True, reply=replies)
                await until(lambda: not there.online)
                gate.open()
                await traffic.flows()
                await until(lambda: there.online)
            await traffic.finish()
        assert [type(error) for error in offline] == [LinkLost, LinkLost, type(None)]


async def test_a_producer_whose_link_goes_silent_learns_it_and_pushes_on(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    async with asyncio.TaskGroup() as together:
        for reliable in (False, True):
            together.create_task(learn_of_silence(redis_server, fresh(), reliable))


async def learn_of_silence(redis_server: EmbeddedRedis, name: str, reliable: bool) -> None:
    with Proxy(redis_server.port) as proxy:
        async with Traffic(
            Bus(proxy.url, reply_timeout_s=QUICK_S), Bus(redis_server.url), name, reliable=reliable
        ) as traffic:
            gate = proxy.hold(lambda command: command.name == "push", reply=True)
            await until(lambda: traffic.doubtful)
            gate.open()
            await traffic.flows()
            await traffic.finish()


@pytest.fixture(params=["sentinel", "cluster"])
def fails_over(request: pytest.FixtureRequest) -> EmbeddedSentinel | EmbeddedCluster:
    return request.getfixturevalue(f"{request.param}_servers")  # type: ignore[no-any-return]


async def test_a_fail_over_costs_a_pause(
    fails_over: EmbeddedSentinel | EmbeddedCluster, fresh: Fresh
) -> None:
    group, layout = fails_over, "cluster" if isinstance(fails_over, EmbeddedCluster) else "sentinel"

    def traffic(reliable: bool, name: str) -> Traffic:
        buses = [Bus(",".join(group.urls), layout=layout) for _ in range(2)]
        return Traffic(buses[0], buses[1], name, reliable=reliable)

    def owner(name: str) -> EmbeddedRedis:
        return (
            group.owner(QueueKeys(name, True).metadata)
            if isinstance(group, EmbeddedCluster)
            else group.master
        )

    name = fresh()
    beside = next(each for each in iter(fresh, "") if owner(each) is owner(name))
    async with traffic(True, name) as reliable, traffic(False, beside) as unreliable:
        dead = await asyncio.to_thread(kill_in_sync, owner(name))
        for each in (reliable, unreliable):
            await each.flows()
            await each.finish()
    await asyncio.to_thread(dead.restart)  # wait_healthy() is for the next who breaks it


@both
async def test_slots_that_move_under_load_cost_nothing(
    cluster_servers: EmbeddedCluster, fresh: Fresh, reliable: bool
) -> None:
    name, url = fresh(), cluster_servers.urls[0]
    async with Traffic(
        Bus(url, layout="cluster"), Bus(url, layout="cluster"), name, reliable=reliable
    ) as traffic:
        for _ in range(3):
            await asyncio.to_thread(Move(cluster_servers, traffic.producer.keys.metadata).whole)
            await traffic.flows()
        await traffic.finish()


async def test_a_server_that_hangs_up_on_a_ping_and_is_well_is_not_away(
    redis_server: EmbeddedRedis,
) -> None:
    with Proxy(redis_server.port) as proxy:
        changes: list[str] = []
        bus = Bus(proxy.url)
        for event in ("online", "offline"):
            bus.on(event, lambda *_, event=event: changes.append(event))
        async with bus:
            for _ in range(2):
                gate = proxy.hold(lambda command: command.name == "PING")
                held = await asyncio.to_thread(gate.wait)
                gate.open()
                held.drop()
                again = proxy.hold(
                    lambda command: command.name == "PING"
                )  # the next turn of who watches: it has decided on the last one
                held = await asyncio.to_thread(again.wait)
                again.open()
                held.release()
            assert changes == ["online"]


async def test_rights_that_are_withdrawn_before_a_ping_are_the_reason_that_is_named(
    fresh: Fresh,
) -> None:
    with EmbeddedRedis() as server, Proxy(server.port) as proxy:
        server.command("ACL", "SETUSER", "app", "on", ">pass-of-app", "~*", "&*", "+@all")
        offline: list[BusError | None] = []
        bus = Bus(proxy.url, user="app", password="pass-of-app")
        bus.on("offline", offline.append)
        with pytest.raises(Unauthorized):  # noqa: PT012  # a scope ends with it
            async with bus:
                gate = proxy.hold(lambda command: command.name == "PING")
                await asyncio.to_thread(gate.wait)
                server.command("ACL", "SETUSER", "app", "off")
                server.command("CLIENT", "KILL", "USER", "app")
                gate.open()
                await asyncio.Event().wait()
        assert [type(error) for error in offline] == [Unauthorized]


@both
async def test_rights_taken_away_end_the_scope_with_a_clear_error(
    fresh: Fresh, reliable: bool
) -> None:
    with EmbeddedRedis() as server:
        server.command("ACL", "SETUSER", "app", "on", ">pass-of-app", "~*", "&*", "+@all")
        offline: list[BusError | None] = []
        bus = Bus(server.url, user="app", password="pass-of-app")
        bus.on("offline", offline.append)
        with pytest.raises(Unauthorized) as raised:  # noqa: PT012  # a scope ends with it
            async with Traffic(Bus(server.url), bus, fresh(), reliable=reliable):
                server.command("ACL", "SETUSER", "app", "off")
                server.command("CLIENT", "KILL", "USER", "app")
                await asyncio.Event().wait()
        assert "pass-of-app" not in str(raised.value)
        assert [type(error) for error in offline] == [Unauthorized]
