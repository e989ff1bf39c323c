"""Compressed messages: when they are, that they arrive, and that a little that stands for much
costs no more than much.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory

from busmq_spark.bus.bus import Bus
from busmq_spark.federation.gate.limits import MIB, PeerLimits
from busmq_spark.federation.npm_wire.channels import MuxPacket
from busmq_spark.federation.serve.connection import NpmProtocolServerConnection
from busmq_spark.federation.serve.server import FederationServer
from tests.bus.tools import until
from tests.conftest import Fresh
from tests.federation.conftest import Serve
from tests.federation.tools import SECRET

TEXT = json.dumps(
    [{"flight": n, "from": "SFO", "to": "JFK", "delay": n % 7} for n in range(20_000)]
)


def asking(server: FederationServer) -> connect:
    """A peer that asks for compression, and takes and sends messages of any length."""
    best = ClientPerMessageDeflateFactory(compress_settings={"level": 9})
    return connect(
        f"{server.url}?secret={SECRET}", compression=None, extensions=[best], max_size=None
    )


@pytest.mark.parametrize(
    ("here", "there"), [(True, True), (True, False), (False, True), (False, False)]
)
async def test_messages_are_compressed_where_both_sides_say_so(
    federation: Serve, fresh: Fresh, here: bool, there: bool
) -> None:
    async with federation(compression=there) as (_, server):
        settings: dict[str, Any] = {"federate_compression": True} if here else {}
        async with Bus(
            federate=server.url, federate_secret=SECRET, federate_sockets=1, **settings
        ) as bus:
            async with bus.federate(bus.queue(fresh())) as queue:
                assert await queue.push(TEXT) == 1
                assert [message.text async for message in queue.consume(max=1)] == [TEXT]
            [pool] = bus._links._pools.values()
            socket = pool.sockets[0]._socket
            assert (
                (socket.written < len(TEXT) / 4)
                == (socket.received < len(TEXT) / 4)
                == (here and there)
            )


async def test_a_message_is_as_long_as_it_is_once_it_is_read(federation: Serve) -> None:
    async with (
        federation(compression=True, limits=PeerLimits(message_bytes=MIB)) as (_, server),
        asking(server) as peer,
    ):
        assert peer.protocol.extensions
        await peer.send(MuxPacket("0" * 16, bytes(2 * MIB)).encode())
        with pytest.raises(ConnectionClosedError) as closed:
            await peer.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def test_many_messages_in_a_few_bytes_are_read_as_they_are_taken(
    federation: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, taken = asyncio.Event(), []

    async def taking(_: NpmProtocolServerConnection, message: str | bytes) -> None:
        await go_on.wait()
        taken.append(len(message))

    monkeypatch.setattr(NpmProtocolServerConnection, "_handle_message", taking)
    many, size = 60, 2 * MIB
    async with federation(compression=True) as (_, server), asking(server) as peer:
        for _ in range(many):
            peer.protocol.send_binary(bytes(size))
        data = b"".join(peer.protocol.data_to_send())
        assert len(data) < many * size / 500
        peer.transport.write(data)
        [socket] = server._socket_limiter.sockets
        await until(lambda: socket.recv_messages.paused)
        assert sum(len(frame.data) for frame in socket.recv_messages.frames.queue) <= 6 * size
        go_on.set()
        await until(lambda: len(taken) == many)
        assert {*taken} == {size}


async def test_what_was_sent_compressed_before_a_close_is_received_to_the_last(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation(compression=True) as (bus, server), bus.queue(fresh()) as queue:
        settings: dict[str, Any] = {
            "federate_secret": SECRET,
            "federate_sockets": 1,
            "federate_compression": True,
        }
        async with (
            Bus(federate=server.url, **settings) as far,
            far.federate(far.queue(queue.name)) as same,
        ):
            await asyncio.gather(*(same.push(f"{n}:{TEXT}") for n in range(20)))
        assert [message.text.partition(":")[0] async for message in queue.consume(max=20)] == [
            f"{n}" for n in range(20)
        ]
