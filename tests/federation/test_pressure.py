"""What one peer may cost: limits, back-pressure, and peers that do not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import FederationLost
from busmq_spark.federation.client import remote_reconnector
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.npm_wire.channels import METHODS_OF_TYPE, MuxPacket, make_creation
from busmq_spark.federation.npm_wire.dnode import DnodeCallbacks
from busmq_spark.federation.serve.connection import NpmProtocolServerConnection
from busmq_spark.federation.serve.peer import MAX_WAITING_BYTES
from busmq_spark.federation.serve.server import FederationServer
from tests.bus.tools import UNTIL_S, until
from tests.conftest import Fresh
from tests.federation.conftest import Serve
from tests.federation.tools import SECRET, Wire, most_in_work, most_waiting, pack_call

BIG = "x" * 50_000
SOCKETS = 8 * 1024 * 1024
"""More than the buffers of a socket on this machine hold, both ends together."""

MANY = 1000


@asynccontextmanager
async def deaf(server: FederationServer) -> AsyncIterator[ClientConnection]:
    """A peer that sends and never reads."""
    async with connect(
        f"{server.url}?secret={SECRET}",
        compression=None,
        max_queue=1,
        ping_interval=None,
        close_timeout=0.1,
    ) as socket:
        yield socket


async def say(socket: ClientConnection, channel: str, *bodies: bytes) -> None:
    for body in bodies:
        await socket.send(MuxPacket(channel, body).encode())


def call(method: int, *arguments: Any) -> bytes:
    return pack_call(method, arguments, DnodeCallbacks()).encode()


def listen(event: str) -> bytes:
    return call(0, event, print)


def waits(connection: NpmProtocolServerConnection) -> bool:
    """Whether something waits for the peer, and nothing has left for a while."""
    return (
        connection.work.send_buffer.waiting > 0
        and connection._socket.stalled_s(asyncio.get_running_loop().time()) > 0.3
    )


def stuck(connection: NpmProtocolServerConnection) -> bool:
    """Whether nothing more is read from the peer until it reads."""
    return connection.work._over_limits and waits(connection)


CONSUME = [listen("message"), call(4, {"ttl": 60}), call(18, {})]


async def test_a_peer_that_does_not_read_leaves_the_messages_in_the_queue_and_is_cut_off(
    federation: Serve, fresh: Fresh
) -> None:
    async with (
        federation(limits=PeerLimits(send_s=0.5)) as (bus, server),
        bus.queue(fresh()) as queue,
    ):
        count = SOCKETS // len(BIG) * 2
        await queue.push_many([BIG] * count)
        async with deaf(server) as socket:
            await until(lambda: server._connections)
            [connection] = server._connections
            most = most_waiting(connection)
            await say(socket, "0" * 16, make_creation("queue", queue.name).encode(), *CONSUME)
            await until(lambda: not server._connections)
            assert len(BIG) <= most() <= MAX_WAITING_BYTES + len(BIG) + 1000
        assert (
            await queue.count() * len(BIG) > SOCKETS // 2
        )  # what was not on its way has gone back
        assert 'cut_off_total{reason="slow"} 1' in server.metrics.text()


async def test_a_peer_that_is_cut_off_while_nothing_more_is_read_from_it_leaves_nothing(
    federation: Serve, fresh: Fresh
) -> None:
    async with (
        federation(limits=PeerLimits(send_s=4.0, in_flight_bytes=2 * len(BIG))) as (bus, server),
        bus.queue(fresh()) as queue,
    ):
        await queue.push_many([BIG] * (SOCKETS // len(BIG)))
        async with deaf(server) as socket:
            await say(socket, "0" * 16, make_creation("queue", queue.name).encode(), *CONSUME)
            await until(lambda: any(stuck(connection) for connection in server._connections))
            await say(socket, "0" * 16, call(3), call(3))
            await until(lambda: not server._connections)
        assert len(bus._objects) == 1


async def test_a_peer_that_leaves_a_channel_does_not_wait_to_be_let_in(
    federation: Serve, fresh: Fresh, redis_url: str
) -> None:
    async with federation() as (bus, server), Bus(redis_url) as other, Wire(server) as wire:
        chat = await wire.open("channel", fresh(), "local", "remote")
        await chat.listen("connect", "error")
        async with other.queue(f"channel:local:{chat.name}") as held:
            await held.consume(reliable=True).begin()
            await chat.send("connect", {"reliable": True})  # waits for the other reader to end
            await chat.send("disconnect")
            assert await chat.call("isAttached") == [False]
            assert (chat.heard, len(bus._objects)) == ([], 0)
        await chat.send("connect", {"reliable": True})
        await chat.event("connect")


async def test_a_peer_that_goes_while_its_call_waits_is_not_waited_for(
    federation: Serve, fresh: Fresh, redis_url: str
) -> None:
    async with (
        federation(limits=PeerLimits(in_flight_messages=1)) as (bus, server),
        Bus(redis_url) as other,
    ):
        name = fresh()
        async with other.queue(f"channel:local:{name}") as held:
            await held.consume(reliable=True).begin()
            async with Wire(server) as wire:
                chat = await wire.open("channel", name, "local", "remote")
                await chat.send("connect", {"reliable": True})  # waits for the other reader to end
                await until(
                    lambda: any(connection.work._over_limits for connection in server._connections)
                )
                wire.socket.transport.abort()
                await until(lambda: not server._connections and not bus._objects)


async def test_a_peer_that_reads_late_gets_everything_in_order(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (bus, server), bus.queue(fresh()) as queue:
        count = SOCKETS // len(BIG)
        await queue.push_many([f"{number}:{BIG}" for number in range(count)])
        async with deaf(server) as socket:
            await say(socket, "0" * 16, make_creation("queue", queue.name).encode(), *CONSUME)
            await until(lambda: any(map(waits, server._connections)))
            ids: list[bytes] = []
            while len(ids) < count:
                message = await socket.recv()
                assert isinstance(message, bytes)
                if b":xxx" in message[:60]:
                    ids.append(message.split(b'["')[1].split(b":")[0])
            assert ids == [str(number).encode() for number in range(count)]


async def test_a_slow_peer_slows_no_other(federation: Serve, fresh: Fresh) -> None:
    async with federation() as (bus, server), bus.queue(fresh()) as queue, Wire(server) as wire:
        await queue.push_many([BIG] * (SOCKETS // len(BIG)))
        async with deaf(server) as socket:
            await say(socket, "0" * 16, make_creation("queue", queue.name).encode(), *CONSUME)
            await until(lambda: any(map(waits, server._connections)))
            other = await wire.open("queue", fresh())
            await other.send("attach", {})
            assert await other.call("push", "quick") == [None, 1]


async def test_no_more_calls_are_in_work_than_allowed_and_all_are_done(
    federation: Serve, fresh: Fresh
) -> None:
    async with (
        federation(limits=PeerLimits(in_flight_messages=5)) as (_, server),
        Wire(server) as wire,
    ):
        queue = await wire.open("queue", fresh())
        [connection] = server._connections
        most = most_in_work(connection)
        results: list[Any] = []
        await queue.send("attach", {})
        for _ in range(200):
            await queue.send("push", "x", lambda *values: results.append(values[1]))
            await queue.send("count", lambda *values: results.append(-values[1]))
        while len(results) < 400:
            await queue.step()
        assert [id for id in results if id > 0] == list(range(1, 201))
        assert most() == 5
        assert connection.work._messages == connection.work._bytes == 0


async def test_what_is_in_work_on_a_channel_that_closes_counts_no_more(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        good = await wire.open("queue", fresh())
        for _ in range(20):
            queue = await wire.open("queue", fresh())
            for method in ("attach", "count", "push", "count", "exists", "push"):
                await queue.send(method, *(["x"] if method == "push" else []), print)
            await queue.close()
        [connection] = server._connections
        assert await good.call("isAttached") == [False]
        await until(lambda: not connection._ending)
        assert connection.work._messages == connection.work._bytes == 0
        assert connection.channel_count == 1


async def test_a_channel_too_many_is_closed_and_those_before_stay(
    federation: Serve, fresh: Fresh
) -> None:
    async with (
        federation(limits=PeerLimits(channels_per_socket=2)) as (_, server),
        Wire(server) as wire,
    ):
        first, second = await wire.open("queue", fresh()), await wire.open("queue", fresh())
        third = wire.channel()
        await wire.send(third, make_creation("queue", fresh()).encode())
        assert await wire.next(third) is None
        await wire.send(third, b"late")
        assert await first.call("isAttached") == [False]
        await second.close()
        await until(lambda: next(iter(server._connections)).channel_count == 1)
        await wire.open("queue", fresh())


async def test_a_program_whose_object_is_one_too_many_is_told_which_limit(
    federation: Serve, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    one: dict[str, Any] = {"federate_secret": SECRET, "federate_sockets": 1}
    async with (
        federation(limits=PeerLimits(channels_per_socket=2)) as (_, server),
        Bus(federate=server.url, **one) as away,
    ):
        first, *others = (away.federate(away.queue(fresh())) for _ in range(3))
        await first.attach()
        monkeypatch.setattr(remote_reconnector, "PATIENCE_S", 0.3)
        with pytest.raises(
            FederationLost,
            match=(
                r"refused one more object beside [23] on this web socket; its limit is"
                r" channels_per_socket"
            ),
        ):
            await asyncio.gather(*(queue.attach() for queue in others))
        assert await first.push("x") == 1


async def test_a_message_for_thousands_of_listeners_of_one_peer_costs_bounded_memory(
    federation: Serve, fresh: Fresh
) -> None:
    limits = PeerLimits(in_flight_bytes=60_000, listeners_per_channel=MANY + 1, send_s=0.5)
    async with (
        federation(limits=limits) as (bus, server),
        bus.queue(fresh()) as queue,
        deaf(server) as socket,
    ):
        await say(
            socket,
            "0" * 16,
            make_creation("queue", queue.name).encode(),
            *[listen("message")] * MANY,
            *CONSUME,
        )
        await until(lambda: server._connections)
        [connection] = server._connections
        most = most_waiting(connection)
        await queue.push(BIG)
        await until(lambda: not server._connections)
        assert len(BIG) <= most() <= 60_000 + len(BIG) + 1000
        assert 'cut_off_total{reason="slow"} 1' in server.metrics.text()


async def test_a_request_for_thousands_of_listeners_of_one_peer_costs_bounded_memory(
    federation: Serve, fresh: Fresh
) -> None:
    """All of them get it at once, since each may give a part of the reply."""
    limits = PeerLimits(
        message_bytes=60_000, in_flight_bytes=60_000, listeners_per_channel=MANY + 1
    )
    name = fresh()
    async with federation(limits=limits) as (bus, server), deaf(server) as socket:
        serve = METHODS_OF_TYPE["service"].index("serve")
        await say(
            socket,
            "0" * 16,
            make_creation("service", name).encode(),
            *[listen("request")] * MANY,
            call(serve, {}),
        )
        await until(lambda: server._connections)
        [connection] = server._connections
        most = most_waiting(connection)
        async with bus.service(name) as requester:
            await requester.connect()
            await requester.send(BIG)
            await until(lambda: not server._connections)
        assert len(BIG) <= most() <= 180_000
        assert 'cut_off_total{reason="flooded"} 1' in server.metrics.text()


async def test_a_listener_too_many_closes_its_channel(federation: Serve, fresh: Fresh) -> None:
    async with (
        federation(limits=PeerLimits(listeners_per_channel=3)) as (_, server),
        Wire(server) as wire,
    ):
        queue = await wire.open("queue", fresh())
        for event in ("attaching", "attached", "consuming", "detached"):
            await queue.send("once", event, print)
        assert await wire.next(queue.channel) is None


async def test_a_message_longer_than_allowed_ends_the_socket(
    federation: Serve, fresh: Fresh
) -> None:
    async with (
        federation(limits=PeerLimits(message_bytes=10_000)) as (_, server),
        Wire(server) as wire,
        Wire(server) as other,
    ):
        queue = await wire.open("queue", fresh())
        await queue.send("push", "x" * 10_001)
        await wire.socket.wait_closed()
        assert wire.socket.protocol.close_code == 1009
        assert await (await other.open("queue", fresh())).call("isAttached") == [False]


async def test_a_message_too_long_for_the_wire_stays_in_its_queue_and_is_reported(
    federation: Serve, fresh: Fresh
) -> None:
    async with (
        federation(limits=PeerLimits(message_bytes=10_000)) as (bus, server),
        Wire(server) as wire,
        bus.queue(fresh()) as owner,
    ):
        await owner.push_many(["short", "é" * 6000, "behind"])
        queue = await wire.open("queue", owner.name)
        await queue.listen("message", "error", "consuming")
        await queue.send("attach", {})
        await queue.send("consume", {})
        assert await queue.event("message") == ["short", 1]
        assert "message 2" in (await queue.event("error"))[0]
        assert [await queue.event("consuming") for _ in range(2)] == [[True], [False]]
        assert await owner.count() == 2


async def test_lines_that_do_not_end_cost_no_more_than_one_message_whatever_the_number_of_channels(
    federation: Serve, fresh: Fresh
) -> None:
    async with (
        federation(limits=PeerLimits(message_bytes=10_000)) as (_, server),
        Wire(server) as wire,
    ):
        first, second, third = [await wire.open("queue", fresh()) for _ in range(3)]
        for queue in (first, second):
            await wire.send(queue.channel, b"x" * 4000)
        await wire.send(third.channel, b"x" * 4000)
        assert await wire.next(third.channel) is None
        await wire.send(second.channel, b"x" * 4000)  # there is room again
        await wire.send(second.channel, b"\n")
        assert await wire.next(second.channel) is None  # it was no line
        [connection] = server._connections
        assert connection.work._partial_bytes == 4000


async def test_pushes_before_attaching_are_bounded_in_bytes(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queue = await wire.open("queue", fresh())
        answers: list[Any] = []
        for _ in range(30):
            await queue.send("push", BIG, lambda *values: answers.append(values))
        assert (await queue.call("isAttached")) == [False]
        assert {error["code"] for (error,) in answers} == {"BUSMQ_STATE"}
        refused = len(answers)
        await queue.send("attach", {})
        while len(answers) < 30:
            await queue.step()
        assert (
            len([values for values in answers if values[0] is None])
            == 30 - refused
            == 1024 * 1024 // len(BIG)
        )


async def test_a_line_that_never_ends_ends_its_channel(federation: Serve, fresh: Fresh) -> None:
    async with (
        federation(limits=PeerLimits(message_bytes=10_000)) as (_, server),
        Wire(server) as wire,
    ):
        queue = await wire.open("queue", fresh())
        for _ in range(11):
            await wire.send(queue.channel, b"x" * 1000)
        assert await wire.next(queue.channel) is None


@pytest.mark.parametrize(
    "limits", [PeerLimits(connections=2), PeerLimits(connections_per_address=2)]
)
async def test_a_socket_too_many_is_closed_at_once_and_room_is_made_by_those_that_leave(
    federation: Serve, limits: PeerLimits
) -> None:
    async with federation(limits=limits) as (_, server):
        async with Wire(server), Wire(server):
            with pytest.raises((OSError, InvalidHandshake, ConnectionClosed, EOFError)):
                await Wire(server).__aenter__()
        await until(lambda: server._socket_limiter.open_count == 0)
        async with Wire(server):
            assert 'refused_total{reason="busy"} 1' in server.metrics.text()


async def test_a_handshake_that_is_never_finished_is_ended(federation: Serve) -> None:
    async with federation(limits=PeerLimits(handshake_s=0.3)) as (_, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /bus HTTP/1.1\r\n")
        assert await asyncio.wait_for(reader.read(), UNTIL_S) == b""
        writer.close()
        await until(lambda: server._socket_limiter.open_count == 0)


async def test_a_server_stops_although_a_peer_does_not_read(
    federation: Serve, fresh: Fresh
) -> None:
    async with (
        federation(limits=PeerLimits(close_s=0.2)) as (bus, server),
        bus.queue(fresh()) as queue,
    ):
        await queue.push_many([BIG] * (SOCKETS // len(BIG)))
        peer = deaf(server)
        socket = await peer.__aenter__()
        await say(socket, "0" * 16, make_creation("queue", queue.name).encode(), *CONSUME)
        await until(lambda: any(map(waits, server._connections)))
    socket.transport.abort()


async def test_peers_that_come_and_go_leave_nothing(federation: Serve, fresh: Fresh) -> None:
    names = [fresh() for _ in range(3)]
    async with federation() as (bus, server):
        before = asyncio.all_tasks()
        for turn in range(30):
            async with Wire(server) as wire:
                things = [
                    (
                        await wire.open("queue", names[0]),
                        "consume",
                        {"reliable": turn % 2 == 0},
                        "consuming",
                    ),
                    (
                        await wire.open("channel", names[1], "local", "remote"),
                        "connect",
                        {},
                        "connect",
                    ),
                    (await wire.open("pubsub", names[2]), "subscribe", {}, "subscribed"),
                ]
                await things[0][0].send("attach", {})
                for thing, method, options, event in things:
                    await thing.listen(event)
                    await thing.send(method, options)
                    await thing.event(event)
                if turn % 3:
                    wire.socket.transport.abort()
        await until(lambda: not server._connections)
        await until(lambda: asyncio.all_tasks() <= before)
        assert (
            len(bus._objects),
            len(bus.keep_alive._due),
            len(bus._lease_users),
            server._socket_limiter.open_count,
        ) == (0, 0, 0, 0)
