"""Answers may be much longer than the calls: what they may take together, and what is too long for
the wire.
"""

from __future__ import annotations

import asyncio

import pytest

from busmq_spark.errors import RequestFailed
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.npm_wire.channels import METHODS_OF_TYPE, make_creation
from busmq_spark.federation.serve.peer import MAX_ANSWERS_READ_AT_ONCE, MAX_WAITING_BYTES
from tests.bus.tools import until
from tests.conftest import Fresh
from tests.federation.conftest import Serve
from tests.federation.test_pressure import call, deaf, say
from tests.federation.tools import Wire, most_waiting

LONG = "x" * 6000
LITTLE = PeerLimits(message_bytes=10_000)


async def test_answers_out_of_storage_wait_for_a_peer_that_does_not_read(
    federation: Serve, fresh: Fresh
) -> None:
    name, count, size = fresh(), 40, 500_000
    key = f"bus:persisted:{name}"
    async with federation() as (_, server):
        async with Wire(server) as wire:
            writer = await wire.open("persistify", name, {}, ["a"])
            assert await writer.call("pwrite", key, {"a": "z" * size}) == [None, "OK", key]
        await until(lambda: not server._connections)
        async with deaf(server) as socket:
            for number in range(count):
                await say(
                    socket, f"{number:016}", make_creation("persistify", name, {}, ["a"]).encode()
                )
                await say(
                    socket,
                    f"{number:016}",
                    call(METHODS_OF_TYPE["persistify"].index("pread"), key, print),
                )
            [connection] = server._connections
            most = most_waiting(connection)
            await until(lambda: connection.work.send_buffer.is_full)
            async with Wire(server) as wire:
                reader = await wire.open("persistify", name, {}, ["a"])
                for _ in range(
                    count
                    # Whatever the server would read for the other peer, it has had the time for by
                    # then
                ):
                    assert (await reader.call("pread", key))[0] is None
            answers = 0
            while answers < count:
                answers += len(await socket.recv()) > size
        assert most() <= MAX_WAITING_BYTES + MAX_ANSWERS_READ_AT_ONCE * (size + 1000)


async def test_an_answer_that_is_too_long_is_an_error_and_the_channel_lives(
    federation: Serve, fresh: Fresh
) -> None:
    name = fresh()
    async with federation(limits=LITTLE) as (bus, server), Wire(server) as wire:
        stored, queue, news = (
            await wire.open("persistify", name, {}, ["a"]),
            await wire.open("queue", name),
            await wire.open("pubsub", name),
        )
        await queue.send("attach")
        for field in ("a", "b"):
            await stored.call("pwrite", f"bus:persisted:{name}", {field: LONG})
            await queue.call("metadata", field, LONG)
        for answer in (
            await stored.call("pread", f"bus:persisted:{name}"),
            await queue.call("metadata"),
        ):
            assert answer[0]["code"] == "BUSMQ_MESSAGE_REFUSED"
        assert await queue.call("metadata", "a") == [None, LONG]
        await news.listen("subscribed", "message", "error")
        await news.send("subscribe")
        await news.event("subscribed")
        await bus.pubsub(name).publish(2 * LONG)
        assert "on the wire" in (await news.event("error"))[0]
        await bus.pubsub(name).publish("short")
        assert await news.event("message") == ["short"]


async def test_a_provider_has_a_bounded_number_of_requests_and_none_that_is_too_long(
    federation: Serve, fresh: Fresh
) -> None:
    async with (
        federation(limits=LITTLE) as (bus, server),
        Wire(server) as wire,
        bus.service(fresh()) as asking,
    ):
        service = await wire.open("service", asking.name)
        await service.listen("request", "serving")
        await service.send("serve", {"concurrency": 10**9})
        await service.event("serving")
        await asking.connect()
        with pytest.raises(RequestFailed, match="on the wire"):
            await asking.request(2 * LONG, timeout_s=60)
        asked = [
            asyncio.ensure_future(asking.request(number, timeout_s=60)) for number in range(150)
        ]
        await until(lambda: wire.got[service.channel].qsize() >= 100)
        async with bus.queue(f"service:{asking.name}") as waiting:
            assert await waiting.count() == 50
        for _ in range(150):
            data, reply = await service.event("request")
            await service.invoke(reply, None, data)
        assert await asyncio.gather(*asked) == list(range(150))
