"""Peers that stop reading or disconnect while messages are sent to them: no other peer waits, and
messages not received are put back.
"""

from __future__ import annotations

import asyncio

from busmq_spark.bus.bus import Bus
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.npm_wire.channels import make_creation
from busmq_spark.federation.serve.peer import PeerSendBuffer
from busmq_spark.federation.serve.server import FederationServer
from tests.bus.tools import until
from tests.conftest import Fresh
from tests.federation.conftest import Serve
from tests.federation.test_pressure import BIG, SOCKETS, deaf, listen, say
from tests.federation.tools import SECRET, Wire

SUBSCRIBE = [listen("message"), listen("error"), b'{"method":"subscribe","arguments":[{}]}\n']


async def test_a_send_that_waits_for_room_fails_when_the_peer_is_gone() -> None:
    async def sent(_: bytes) -> None:
        await asyncio.Event().wait()

    buffer = PeerSendBuffer(sent, high=10, most=100)
    running = asyncio.create_task(buffer.run())
    buffer.put(b"x" * 11)
    waiting, emptied = (
        asyncio.create_task(buffer.wait_room()),
        asyncio.create_task(buffer.wait_sent()),
    )
    await asyncio.sleep(0)

    running.cancel()
    assert await waiting is False
    await emptied
    buffer.put(b"more")
    assert (buffer.waiting, await buffer.wait_room()) == (0, False)


async def test_a_listener_that_does_not_read_is_cut_off_once_and_leaves_nothing(
    federation: Serve, fresh: Fresh
) -> None:
    async with (
        federation(limits=PeerLimits(send_s=0.5, close_s=0.5)) as (bus, server),
        bus.pubsub(fresh()) as news,
    ):
        async with deaf(server) as socket:
            await say(socket, "0" * 16, make_creation("pubsub", news.name).encode(), *SUBSCRIBE)
            await until(lambda: len(bus._objects) == 2)
            [connection] = (
                server._connections
            )  # now: it may be cut off before the last of these is published
            for _ in range(2 * SOCKETS // len(BIG)):
                await news.publish(BIG)
            await until(lambda: connection.work.send_buffer.closed)
            await until(lambda: not server._connections)
            assert len(bus._objects) == 1
            assert connection.work.send_buffer.waiting == connection.work.pubsub_bytes == 0
        assert 'cut_off_total{reason="slow"} 1' in server.metrics.text()


async def test_what_the_listeners_of_one_socket_have_not_read_is_bounded_for_all_of_them(
    federation: Serve, fresh: Fresh
) -> None:
    name, most = fresh(), 8 * 1024 * 1024
    async with federation() as (bus, server):
        async with deaf(server) as socket:
            for number in range(10):
                await say(
                    socket, f"{number:016}", make_creation("pubsub", name).encode(), *SUBSCRIBE
                )
            await until(lambda: len(bus._objects) == 10)
            [connection] = server._connections
            news = bus.pubsub(name)
            for _ in range(3 * SOCKETS // len(BIG) // 10):
                await news.publish(BIG)
            await until(lambda: connection.work.pubsub_bytes > most - len(BIG))
            assert connection.work.pubsub_bytes <= most
            # Pubsubs
            buffers = [one._subscription._for_handlers for one in bus._objects]  # type: ignore[attr-defined]
            await until(lambda: not any(buffers))
            assert connection.work.pubsub_bytes <= most
            socket.transport.abort()
        await until(lambda: not server._connections)
        assert connection.work.pubsub_bytes == 0


async def test_a_listener_that_reads_late_gets_what_was_kept_in_order_and_the_count_of_the_rest(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (bus, server), Wire(server) as wire, bus.pubsub(fresh()) as news:
        listener = await wire.open("pubsub", news.name)
        await listener.listen("message", "error", "subscribed")
        await listener.send("subscribe")
        await listener.event("subscribed")
        [connection] = server._connections
        connection.work.send_buffer._high = -1  # no room
        connection.work.send_buffer._room.clear()
        for number in range(1200):
            await news.publish(str(number))
        assert "MESSAGES_MISSED" in (await listener.event("error"))[0]
        exposed = connection._sessions[listener.channel]._object
        await until(lambda: exposed._missed == 200)  # type: ignore[union-attr]  # it is a pubsub
        connection.work.send_buffer._high = 1_000_000
        connection.work.send_buffer._room.set()
        assert [await listener.event("message") for _ in range(1000)] == [
            [str(number)] for number in range(200, 1200)
        ]
        await news.publish("now")
        assert await listener.event("message") == ["now"]


def received(wire: Wire, channel: str) -> list[int]:
    """The numbers of the messages that came."""
    bodies = []
    while not wire.got[channel].empty():
        bodies.append(wire.got[channel].get_nowait() or b"")
    return [int(body.split(b'["')[1].split(b":")[0]) for body in bodies if b":xxx" in body]


async def test_a_server_that_stops_while_a_peer_consumes_loses_nothing(
    redis_url: str, fresh: Fresh
) -> None:
    count, small = 8000, "x" * 100
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        await queue.push_many([f"{number}:{small}" for number in range(count)])
        async with FederationServer(bus, Keyring.single(SECRET)) as server:
            wire = await Wire(server).__aenter__()
            theirs = await wire.open("queue", queue.name)
            await theirs.listen("message")
            await theirs.send("attach")
            await theirs.send("consume")
            await until(lambda: wire.got[theirs.channel].qsize() > 500)
        await wire.socket.wait_closed()
        await until(wire._reading.done)
        left = [
            int(message.text.partition(":")[0])
            async for message in queue.consume(remove=False, max=await queue.count())
        ]
        assert wire.socket.protocol.close_code == 1001
        assert left
        assert received(wire, theirs.channel) + left == list(range(count))
        await wire.__aexit__(None, None, None)


async def test_a_channel_that_closes_while_its_peer_consumes_loses_nothing(
    federation: Serve, fresh: Fresh
) -> None:
    count, small = 8000, "x" * 100
    async with federation() as (bus, server), Wire(server) as wire, bus.queue(fresh()) as queue:
        await queue.push_many([f"{number}:{small}" for number in range(count)])
        got: list[int] = []
        for _ in range(5):
            theirs = await wire.open("queue", queue.name)
            await theirs.listen("message")
            await theirs.send("attach")
            await theirs.send("consume")
            # Mypy knows no default of a lambda
            await until(lambda channel=theirs.channel: wire.got[channel].qsize() > 100)  # type: ignore[misc]
            await theirs.close()
            await until(lambda: len(bus._objects) == 1)
            assert await (await wire.open("queue", fresh())).call("isAttached") == [
                False
            ]  # behind all that was sent
            got += received(wire, theirs.channel)
        left = [
            int(message.text.partition(":")[0])
            async for message in queue.consume(remove=False, max=await queue.count())
        ]
        assert got + left == list(range(count))


async def test_a_consumer_that_gets_room_when_its_channel_closes_hands_over_nothing(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (bus, server), Wire(server) as wire, bus.queue(fresh()) as queue:
        theirs = await wire.open("queue", queue.name)
        [connection] = server._connections
        await queue.push_many(["a", "b"])
        await theirs.send("attach")
        await theirs.call("count")
        connection.work.send_buffer._high = -1  # no room
        connection.work.send_buffer._room.clear()
        await theirs.send("consume")
        session = connection._sessions[theirs.channel]
        await until(lambda: any("consuming" in task.get_name() for task in session._tasks))
        assert await queue.count() == 2  # nothing is taken before there is room
        connection.work.send_buffer._high = 1_000_000
        connection.work.send_buffer._room.set()
        connection._end_session(theirs.channel)
        await until(lambda: len(bus._objects) == 1)
        assert await queue.count() == 2
