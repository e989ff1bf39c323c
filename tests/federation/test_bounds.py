"""Bounds for all objects of one connection together, and what a peer is refused or forgiven."""

from __future__ import annotations

import re
from typing import Any

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue.base_queue import DEFAULT_QUEUE_TTL_S
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.npm_wire.channels import MuxPacket, make_creation
from busmq_spark.federation.serve.server import FederationServer
from busmq_spark.queue.command_generators import command
from tests.bus.tools import until
from tests.conftest import Fresh
from tests.federation.conftest import Serve
from tests.federation.test_access import ring
from tests.federation.test_pressure import BIG
from tests.federation.tools import SECRET, Wire


async def test_listeners_of_a_secret_are_bounded_and_those_of_unknown_events_not_kept(
    federation: Serve, fresh: Fresh
) -> None:
    async with (
        federation(limits=PeerLimits(listeners_per_secret=3)) as (_, server),
        Wire(server) as wire,
    ):
        first, second = await wire.open("queue", fresh()), await wire.open("queue", fresh())
        await first.listen("message", "error", "nonsense", *"abcdef")
        await second.listen("message")
        [connection] = server._connections
        assert await second.call("isAttached") == [False]
        assert connection.work.quota.listeners == 3
        await first.close()
        assert await second.call("isAttached") == [False]
        assert connection.work.quota.listeners == 1
        await second.send("once", "attached", print)
        await second.send("attach")
        await second.call("count")
        assert connection.work.quota.listeners == 1
        await second.listen("message", "message")
        await second.send("on", "message", print)
        assert await wire.next(second.channel) is None
        assert connection.work.quota.listeners == 0


async def test_pushes_before_attaching_are_bounded_for_all_queues_of_a_connection(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queues = [await wire.open("queue", fresh()) for _ in range(6)]
        [connection] = server._connections
        answers: list[Any] = []
        for queue in queues:
            for _ in range(20):
                await queue.send("push", BIG, lambda *values: answers.append(values))
            assert await queue.call("isAttached") == [False]
        assert connection.work.deferred_bytes <= 4 * 1024 * 1024
        refused = len(answers)
        assert 120 - refused == 4 * 1024 * 1024 // (len(BIG) + 600)
        await queues[0].send("attach")
        while len(answers) < refused + 20:
            await queues[0].step()
        for queue in queues:
            await queue.close()
        await until(lambda: not connection._ending and not connection._sessions)
        assert connection.work.deferred_bytes == 0


async def test_consuming_goes_on_when_redis_may_write_again_and_the_peer_has_had_the_error(
    fresh: Fresh,
) -> None:
    with EmbeddedRedis() as redis:
        async with (
            Bus(redis.url) as bus,
            bus.queue(fresh()) as stored,
            FederationServer(bus, Keyring.single(SECRET)) as server,
            Wire(server) as wire,
        ):
            await stored.push("kept")
            queue = await wire.open("queue", stored.name)
            await queue.listen("message", "error", "consuming")
            await queue.send("attach")
            assert await queue.call("count") == [None, 1]  # it is attached
            redis.command("REPLICAOF", "127.0.0.1", "1")  # a port that nothing answers at
            await queue.send("consume")
            assert "BUSMQ_READ_ONLY" in (await queue.event("error"))[0]
            redis.command("REPLICAOF", "NO", "ONE")
            assert await queue.event("message") == ["kept", 1]
            assert queue.heard == [("consuming", [True])]


async def test_consuming_that_fails_for_good_says_that_it_has_ended(
    federation: Serve, fresh: Fresh, redis_url: str
) -> None:
    async with federation() as (_, server), Wire(server) as wire, Bus(redis_url) as other:
        queue = await wire.open("queue", fresh())
        await queue.listen("error", "consuming")
        await queue.send("attach")
        await queue.send("consume")
        assert await queue.event("consuming") == [True]
        keys = other.queue(queue.name).keys
        await other.servers.commands[0].execute(command("DEL", keys.messages))
        await other.servers.commands[0].execute(command("SET", keys.messages, "no list"))
        await other.servers.commands[0].execute(command("PUBLISH", keys.available, "1"))
        assert (await queue.event("error"))[0]
        assert await queue.event("consuming") == [False]


async def test_who_only_reads_chooses_no_ttl_either(federation: Serve, fresh: Fresh) -> None:
    async with federation(ring(read=["*"])) as (_, server), Wire(server) as wire:
        queue = await wire.open("queue", fresh())
        await queue.send("attach", {"ttl": 86_400})
        assert 0 < (await queue.call("ttl"))[1] <= DEFAULT_QUEUE_TTL_S


async def test_numbers_without_end_are_no_numbers(federation: Serve, fresh: Fresh) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queue = await wire.open("queue", fresh())
        for value in (b"1e999", b"-1e999"):
            await wire.send(
                queue.channel,
                b'{"method":"attach","arguments":[{"0":{"ttl":%b},"1":"[Function]"}],"callbacks":{"7":["0","1"]}}\n'
                % value,
            )
            assert b"BUSMQ_CONFIG" in (await wire.next(queue.channel) or b"")
        assert await queue.call("isAttached") == [False]


async def test_a_service_whose_requests_would_be_the_replies_of_another_is_refused(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        service = await wire.open("service", f"{fresh()}:replyTo:0123456789abcdef")
        for method in ("serve", "connect"):
            assert (await service.call(method))[0]["code"] == "BUSMQ_CONFIG"
        assert await (await wire.open("service", f"{fresh()}:replyTo:me")).call("isServing") == [
            False
        ]


async def test_text_messages_are_read_as_npms_server_reads_them(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        channel, name = wire.channel(), fresh("é")
        await wire.socket.send(
            MuxPacket(channel, make_creation("queue", name).encode()).encode().decode()
        )
        assert await wire.next(channel) == b"ready"
        [connection] = server._connections
        [session] = connection._sessions.values()
        assert session._object is not None
        assert session._object.name == name


async def test_a_second_reliable_reader_of_a_channel_is_told_and_admitted_when_the_first_ends(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (bus, server), Wire(server) as wire:
        chat = await wire.open("channel", fresh())
        await chat.listen("connect", "error")
        async with bus.queue(f"channel:local:{chat.name}") as held:
            reader = held.consume(reliable=True)
            await reader.begin()
            await chat.send("connect", {"reliable": True, "wait": False})
            assert "reliable consumer already" in (await chat.event("error"))[0]
            await chat.send("connect", {"reliable": True})
            assert "reliable consumer already" in (await chat.event("error"))[0]
            await reader.stop()
            await chat.event("connect")
            assert await chat.call("isAttached") == [True]


async def test_a_persisted_object_that_is_too_large_is_refused_before_it_is_loaded(
    federation: Serve, fresh: Fresh
) -> None:
    async with (
        federation(limits=PeerLimits(message_bytes=1_000_000)) as (bus, server),
        Wire(server) as wire,
    ):
        name = fresh()
        key = f"bus:persisted:{name}"
        thing = await wire.open("persistify", name, {}, ["a"])
        for number in range(8):
            assert (await thing.call("pwrite", key, {f"f{number}": "x" * 200_000}))[:2] == [
                None,
                "OK",
            ]
        link = bus.servers.commands[0]
        before = await link.execute(command("INFO", "stats"))
        refusal = (await thing.call("pread", key))[0]
        after = await link.execute(command("INFO", "stats"))
        assert refusal["code"] == "BUSMQ_MESSAGE_REFUSED"
        sent = [
            int(re.findall(rb"total_net_output_bytes:(\d+)", text)[0]) for text in (before, after)
        ]
        assert sent[1] - sent[0] < 100_000
        await link.execute(command("HDEL", key, *(f"f{number}" for number in range(4))))
        assert {*(await thing.call("pread", key))[1]} == {f"f{number}" for number in range(4, 8)}
