"""A server in a process of its own, for tests that treat it badly, and the peers that they need."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from busmq_spark.federation.npm_wire.channels import METHODS_OF_TYPE, make_creation
from tests.conftest import Fresh
from tests.federation.raw import CLOSE, Object, Raw, frame, request
from tests.serving import Serving, everything
from tests.support import wait_until

SECRET = "a-secret-of-some-length"
PATH = f"/bus?secret={SECRET}"
MIB = 1024 * 1024
ROOM = 40 * MIB


@dataclass
class Served:
    """A server in a process of its own."""

    pid: int
    port: int

    @property
    def memory(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    async def metric(self, name: str) -> float:
        raw = await Raw.dial(self.port)
        status, _, body = await raw.ask(request("/metrics"))
        await raw.close()
        assert status == 200
        [value] = re.findall(rf"^{name} (\S+)$", body.decode(), re.MULTILINE)
        return float(value)

    async def steady(self, name: str, least: float) -> float:
        """What the metric has come to, once it does not change any more."""
        seen: list[float] = []
        async with asyncio.timeout(60):
            while len(seen) < 4 or len({*seen[-4:]}) > 1 or seen[-1] < least:
                seen.append(await self.metric(name))
                await asyncio.sleep(0.1)  # between two looks
        return seen[-1]

    async def empty(self, timeout_s: float) -> None:
        """Until the only connection is that of this request."""
        async with asyncio.timeout(timeout_s):
            # It is another process's
            while await self.metric("busmq_federation_sockets") > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def recovers(self, before: int, room: int = ROOM) -> None:
        """Until everybody is gone and memory is back where it was, give or take a little. A server
        tidies up after many have left.
        """
        await self.empty(60)
        for _ in range(3):
            many = await asyncio.gather(*(Raw.dial(self.port) for _ in range(60)))
            async with asyncio.timeout(60):
                # It is another process's
                while await self.metric("busmq_federation_sockets") < 60:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await asyncio.sleep(
                1.2
            )  # the server checks once a second, and none of its metrics shows that it has
            await asyncio.gather(*(each.close() for each in many))
            await self.empty(60)
            with suppress(AssertionError):
                wait_until(lambda: self.memory < before + room, 6)
                return
        raise AssertionError(f"{(self.memory - before) / MIB:.0f} MiB are kept")


@contextmanager
def serve_process(
    redis_url: str, folder: Path, send_s: int = 8, in_flight_bytes: int = 131_072
) -> Iterator[Served]:
    """Runs it, and fails if it ended, or met what it did not expect."""
    limits = {
        "connections_per_address": 1000,
        "handshake_s": 3,
        "send_s": send_s,
        "close_s": 2,
        "kernel_bytes": 32_768,
    }
    limits["in_flight_bytes"] = in_flight_bytes
    with Serving(
        redis_url,
        folder,
        everything(SECRET),
        *(f"--limit={name}={n}" for name, n in limits.items()),
    ) as server:
        yield Served(server.process.pid, server.port)
        assert server.process.poll() is None, server.log.read_text()[-2000:]
        assert not re.findall("(?m)^.*(?:failed|Traceback).*$", server.log.read_text()), (
            "the server met what it did not expect"
        )


async def honest(port: int, name: str) -> Object:
    raw = await Raw.open(port, PATH)
    return await Object(raw).create("queue", list(METHODS_OF_TYPE["queue"]), name)


async def work(peer: Object) -> float:
    """How many functions this thread runs for a call of ``peer``: the median of many, since what
    runs now and then is for all calls together.
    """
    found: list[int] = []
    for _ in range(101):
        calls = itertools.count()
        sys.setprofile(lambda *_, calls=calls: next(calls))
        try:
            assert await peer.call("exists") == [None, False]
        finally:
            sys.setprofile(None)
        found.append(next(calls))
    return statistics.median(found)


async def works(served: Served, fresh: Fresh) -> None:
    """An honest peer is served as ever."""
    peer = await honest(served.port, fresh())
    peer.cast("attach")
    assert await peer.call("push", "x") == [None, 1]
    await peer.raw.close()


async def push_through(raw: Raw, data: bytes) -> None:
    """Send it while another task reads."""
    with suppress(ConnectionError):
        raw.send(data)
        await raw.writer.drain()


async def farewell(raw: Raw) -> None:
    """Say that nothing follows, and read until the server has ended the connection."""
    with suppress(OSError):
        raw.send(frame(b"\x03\xe8", CLOSE))
        raw.writer.write_eof()  # a frame cut off may have swallowed the closing one
    async with asyncio.timeout(60):
        await raw.drained()


async def loris(port: int) -> Raw:
    """Says hello, a byte at a time."""
    raw = await Raw.dial(port)
    raw.send(request(PATH)[:30])
    return raw


async def ignorant(port: int, name: str) -> Raw:
    """Asks for everything and reads none of it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    raw = Raw(*await asyncio.open_connection(sock=sock, limit=1))
    raw.send(request(PATH))
    peer = Object(raw)
    peer.methods = list(METHODS_OF_TYPE["queue"])
    peer.put(make_creation("queue", name).encode())
    await raw.reader.readexactly(1)
    raw.writer.transport.pause_reading()  # type: ignore[attr-defined]  # of a transport that reads
    line: dict[str, Any] = {
        "method": 0,
        "arguments": [{"0": "message", "1": "f"}],
        "callbacks": {"0": ["0", "1"]},
    }
    peer.put(json.dumps(line).encode() + b"\n")
    peer.cast("attach")
    peer.cast("consume", {"remove": False, "index": 0})
    return raw
