"""Strangers and bad peers against a server in a process of its own: it stays up, others hardly notice, and its memory comes back.

What is compared is measured in the same run: an honest peer's median while the others are there, and before they came; the best of a few
windows of each, so that a busy machine fails nobody.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.federation import bulk
from busmq_spark.federation.bulk_calls import OPERATIONS
from busmq_spark.federation.creation import METHODS, creation
from busmq_spark.federation.handshake import BULK
from tests.cli.conftest import COMMAND, environment
from tests.conftest import Fresh
from tests.federation.hostile import SEED, Bender
from tests.federation.raw import BINARY, CHANNEL, CLOSE, PING, TEXT, Object, Raw, frame, request
from tests.federation.test_abuse_codecs import LINES
from tests.support import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.fault]
SECRET = "a-secret-of-some-length"
PATH = f"/bus?secret={SECRET}"
HANDSHAKES, SEQUENCES, BULKS, LORISES, IGNORANT = 2_000, 20_000, 1_000, 300, 300
MARK = b"f" * 16
MIB = 1024 * 1024
CUT_OFF = re.escape('busmq_federation_cut_off_total{reason="slow"}')


@dataclass
class Served:
    """A server in a process of its own."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def memory(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

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
        async with asyncio.timeout(30):
            while len(seen) < 4 or len({*seen[-4:]}) > 1 or seen[-1] < least:
                seen.append(await self.metric(name))
                await asyncio.sleep(0.1)
        return seen[-1]

    async def empty(self, timeout_s: float) -> None:
        """Until nobody is connected but who asks."""
        async with asyncio.timeout(timeout_s):
            while await self.metric("busmq_federation_sockets") > 1:  # noqa: ASYNC110  # it is another process's
                await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def served(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    secrets = tmp_path_factory.mktemp("abuse") / "secrets.toml"
    secrets.touch(0o600)
    secrets.write_text(f'[all]\nsecret = "{SECRET}"\nread = ["*"]\nwrite = ["*"]\nadmin = ["*"]\n')
    limits = {"connections_per_address": 1000, "handshake_s": 3, "send_s": 8, "close_s": 2, "kernel_bytes": 32_768, "in_flight_bytes": 131_072}
    arguments = ["serve", "--listen", "127.0.0.1:0", "--secrets", str(secrets), "--json", *(f"--limit={name}={n}" for name, n in limits.items())]
    log = Path(secrets.parent / "log")
    with log.open("wb") as err, subprocess.Popen([*COMMAND, *arguments], env=environment(redis_url), stdout=subprocess.PIPE, stderr=err) as process:
        try:
            assert process.stdout is not None
            yield Served(process, int(re.findall(r":(\d+)/", json.loads(process.stdout.readline())["url"])[0]))
            assert process.poll() is None, log.read_text()[-2000:]
            assert not re.findall("(?m)^.*(?:failed|Traceback).*$", log.read_text()), "the server met what it did not expect"
        finally:
            process.terminate()
            process.wait(15)


async def honest(port: int, name: str) -> Object:
    raw = await Raw.open(port, PATH)
    return await Object(raw).create("queue", list(METHODS["queue"]), name)


async def median_s(peer: Object, below: float = 0.0, windows: int = 6) -> float:
    """The best of a few medians of the time that a call takes; of fewer, once one is ``below``."""
    medians: list[float] = []
    for _ in range(windows):
        times = []
        for _ in range(50):
            begun = time.perf_counter()
            assert await peer.call("exists") == [None, False]
            times.append(time.perf_counter() - begun)
        medians.append(statistics.median(times))
        if medians[-1] < below:
            break
        await asyncio.sleep(0.1)  # what else the machine does comes and goes
    return min(medians)


async def works(served: Served, fresh: Fresh) -> None:
    """An honest peer is served as ever."""
    peer = await honest(served.port, fresh())
    peer.cast("attach")
    assert await peer.call("push", "x") == [None, 1]
    await peer.raw.close()


async def push_through(raw: Raw, data: bytes) -> None:
    """Send it while somebody else reads."""
    with suppress(ConnectionError):
        raw.send(data)
        await raw.writer.drain()


async def farewell(raw: Raw) -> None:
    """Say that nothing follows, and read until the server has ended the connection."""
    with suppress(OSError):
        raw.send(frame(b"\x03\xe8", CLOSE))
        raw.writer.write_eof()  # a frame cut off may have swallowed the closing one
    async with asyncio.timeout(30):
        await raw.drained()


# -- handshakes ------------------------------------------------------------------------------------------------------------------------------

HEADS = [
    request(PATH),
    request("/bus", f"Authorization: Bearer {SECRET}", f"Sec-WebSocket-Protocol: {BULK}"),
    request("/bus?secret=wrong"),
    request("/metrics"),
    request("/healthz").replace(b"Upgrade: websocket\r\n", b""),
    request(PATH).replace(b"Version: 13", b"Version: 8"),
    request(PATH).replace(b"GET", b"POST"),
    request(PATH, "Content-Length: 5") + b"hello",
    request(PATH, "Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n",
    request(PATH, *(f"X-{number}: x" for number in range(300))),
    request(PATH, "X: " + "x" * 20_000),
    request("/bus?" + "a&" * 5000),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


async def test_malformed_handshakes_are_ended_and_leave_nothing(served: Served, fresh: Fresh) -> None:
    await works(served, fresh)
    before, bender = served.memory, Bender(HEADS)
    heads = bender.inputs(HANDSHAKES)

    async def shake() -> None:
        for head in heads:
            raw = await Raw.dial(served.port)
            raw.send(head)
            with suppress(OSError):
                raw.writer.write_eof()
            async with asyncio.timeout(10):
                await raw.drained()
            await raw.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(shake())
    await served.empty(5)
    await works(served, fresh)
    assert served.memory < before + 20 * MIB


# -- sequences -------------------------------------------------------------------------------------------------------------------------------


def sequence(bender: Bender, creations: Bender, chance: random.Random, channel: bytes) -> list[bytes]:
    """A channel's life gone wrong, each frame of it sound: the socket survives it."""
    bodies = [creations.one(), *(bender.one() for _ in range(chance.randint(0, 3)))]
    frames = [frame(channel + b"1" + (body or b"x")) for body in bodies]
    if chance.random() < 0.7:
        frames.append(frame(channel + b"2"))
    if chance.random() < 0.2:
        chance.shuffle(frames)
    return frames


BROKEN = [
    frame(b"short"),
    frame(CHANNEL),
    frame(CHANNEL + b"3x"),
    frame(CHANNEL + b"1"),
    frame(b"\xff" * 30),
    frame(b"hello", TEXT),
    frame(b"\xff\xfe", TEXT),
    frame(b"x", masked=False),
    frame(b"x", length=2**40),
    frame(b"x", length=2**63),
    frame(b"x" * 10, 3),
    frame(b"x" * 10, 0),
    frame(b"half", final=False) + frame(b"other", final=False),
    frame(b"x" * 200, PING),
    frame(b"\x03\xe8" + b"\xff" * 10, CLOSE),
    frame(b"\x00", CLOSE),
    b"\xff" * 50,
    b"\x82",
]


async def test_malformed_sequences_end_their_channel_or_socket_only(served: Served, fresh: Fresh) -> None:
    await works(served, fresh)
    before, chance = served.memory, random.Random(SEED)
    names = [fresh("abused") for _ in range(5)]
    creations = Bender([creation(kind, name).encode() for kind in METHODS for name in names], SEED)
    calls = [
        json.dumps({"method": method, "arguments": [arguments], "callbacks": {"900": ["0", "1"]}}).encode() + b"\n"
        for method in range(21)
        for arguments in ({"0": {"ttl": 1e400, "max": -1, "reliable": True}, "1": "f"}, {"0": "x" * 50, "1": "f"}, {"0": 2**60, "1": "f"})
    ]
    bender, left, peer = Bender([*LINES, *calls], SEED + 1), iter(range(SEQUENCES)), await honest(served.port, names[0])

    answered: set[bytes] = set()

    async def misbehave() -> None:
        while batch := [f"{number:016d}".encode() for number in islice(left, 25)]:
            raw = await Raw.open(served.port, PATH)
            sent = b"".join(piece for channel in batch for piece in sequence(bender, creations, chance, channel))
            writing = asyncio.create_task(push_through(raw, sent + frame(MARK + b"1" + creation("pubsub", "mark").encode())))
            with suppress(asyncio.IncompleteReadError):
                while True:
                    opcode, payload = await asyncio.wait_for(raw.message(), 30)
                    if opcode == BINARY:
                        answered.add(payload[:16])
                    if payload.startswith(MARK + b"1ready"):
                        break
            await writing
            raw.send(chance.choice([*BROKEN, b""]))
            await farewell(raw)
            await raw.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(misbehave())
    assert len(answered) > 0.9 * SEQUENCES, "the server has not seen them"
    assert len(await peer.call("exists")) == 2
    await peer.raw.close()
    await served.empty(15)
    await works(served, fresh)
    assert served.memory < before + 40 * MIB


def bulk_calls(queue: str) -> list[bytes]:
    """Sound calls of bulk, most with arguments that make sense."""
    key = f"bus:queue:{queue}:stage:batch:0:0:{'0' * 16}"
    staged = [[queue, 0, key, [[1, 1]]]]
    arguments: dict[str, list[Any]] = {
        "hello": [1, "client"],
        "discover": [],
        "attach": [[queue], [True, 60, 0]],
        "states": [{queue: -1}],
        "marks": [{queue: 1}],
        "counters": [[queue]],
        "ack": [{queue: ["5f", 1, "", None, 0]}, ""],
        "subscribe": [{queue: "earliest"}, "s"],
        "subscriptions": [[queue]],
        "traces": [queue],
        "lease": [[queue], "", "me", {}],
        "holders": [[queue], ""],
        "keep_alive": [[queue], "", ""],
        "bytes_until": [queue, 1, 3, 100],
        "read": [[queue, "5f", 1, 9, 0], True, 4096],
        "listen": [[queue]],
        "wait": [1],
        "recorded": ["sink", 0],
        "ends": [[queue]],
        "trim": [{queue: 1}],
        "stage": [queue, key, 0],
        "push": [queue],
        "record": ["sink", 0, staged, "q"],
        "commit": [queue, "sink", 0, staged],
        "discard": [staged],
        "forget": ["sink", staged],
    }
    assert {*arguments} == {*OPERATIONS}
    body = bulk.pack_values([b"a", b"bc" * 100])
    calls = [
        bulk.Frame(bulk.Kind.CALL, number, {"op": name, "args": args}, body if name in ("stage", "push") else b"").encode()
        for number, (name, args) in enumerate(arguments.items())
    ]
    return [*calls, bulk.Frame(bulk.Kind.CREDIT, 14, 4096).encode(), bulk.Frame(bulk.Kind.CANCEL, 14).encode()]


async def test_malformed_bulk_ends_its_socket_at_most(served: Served, fresh: Fresh) -> None:
    await works(served, fresh)
    before, chance = served.memory, random.Random(SEED)
    sound = bulk_calls(fresh("abused"))
    bender, left = Bender(sound, SEED), iter(range(BULKS))

    async def misbehave() -> None:
        for _ in left:
            raw = await Raw.open(served.port, "/bus", f"Authorization: Bearer {SECRET}", f"Sec-WebSocket-Protocol: {BULK}")
            for _ in range(chance.randint(1, 8)):
                raw.send(frame(bender.one() if chance.random() < 0.6 else chance.choice(sound)))
            if chance.random() < 0.1:
                raw.send(chance.choice(BROKEN))
            await farewell(raw)
            await raw.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(misbehave())
    await served.empty(15)
    await works(served, fresh)
    assert served.memory < before + 60 * MIB


# -- those that cling ------------------------------------------------------------------------------------------------------------------------


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
    peer.methods = list(METHODS["queue"])
    peer.put(creation("queue", name).encode())
    await raw.reader.readexactly(1)
    raw.writer.transport.pause_reading()  # type: ignore[attr-defined]  # of a transport that reads
    line: dict[str, Any] = {"method": 0, "arguments": [{"0": "message", "1": "f"}], "callbacks": {"0": ["0", "1"]}}
    peer.put(json.dumps(line).encode() + b"\n")
    peer.cast("attach")
    peer.cast("consume", {"remove": False, "index": 0})
    return raw


async def test_those_who_dawdle_or_never_read_are_cut_off_and_cost_little(served: Served, fresh: Fresh, redis_url: str) -> None:
    full, peer = fresh("full"), await honest(served.port, fresh())
    async with Bus(redis_url) as bus, bus.queue(full) as queue:
        await queue.push_many(["x" * 16_000] * 500)
        alone, before, cut_before = await median_s(peer), served.memory, await served.metric(CUT_OFF)
        clingers = [*await asyncio.gather(*(loris(served.port) for _ in range(LORISES)))]
        clingers += await asyncio.gather(*(ignorant(served.port, full) for _ in range(IGNORANT)))
        filled = await served.steady("busmq_federation_waiting_bytes", IGNORANT * 120_000)
        beset, peak = await median_s(peer, 1.5 * alone, 20), served.memory
        assert await served.metric("busmq_federation_sockets") >= IGNORANT
        await queue.flush()
        async with asyncio.timeout(20):
            while await served.metric("busmq_federation_sockets") > 2:  # noqa: ASYNC110  # it is another process's
                await asyncio.sleep(0.1)
        cut_off = await served.metric(CUT_OFF) - cut_before
        after = await median_s(peer)
    await asyncio.gather(*(each.close() for each in clingers))
    await peer.raw.close()
    print(f"honest median {alone * 1e6:.0f} µs alone, {beset * 1e6:.0f} beset, {after * 1e6:.0f} after; {cut_off:.0f} cut off")
    wait_until(lambda: served.memory < before + 60 * MIB, 15, "memory comes back")
    print(f"memory {before / MIB:.0f} MiB before, {peak / MIB:.0f} beset, {served.memory / MIB:.0f} after; {filled / MIB:.0f} waited")
    assert cut_off == IGNORANT
    assert beset < 2 * max(alone, after)
    assert peak < before + IGNORANT * 2 * MIB
