"""A server of federation beside a bad peer: ``python -m tests.soak.fairness``, a part of
``make soak``.

One secret sends the worst input that is known, a kind after the other. Meanwhile ``/livez`` must
answer within 0.5 s, and the median call of another secret may take five times as long as alone.
Both are measured in the same run, alone and beside each attack. The attacker is a process of its
own with a low priority: the two cores are for the server and for those who measure it. The exit
code is 1 after a violation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import BusError
from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.federation.npm_wire.channels import METHODS_OF_TYPE, make_creation
from busmq_spark.store.protocol import QueueCreateOptions
from tests.federation.raw import PING, Raw, frame
from tests.serving import Serving

LIVEZ_S, TIMES_ALONE = 0.5, 5.0
MIB = 1024 * 1024
SECRETS = {name: f"{name}-has-a-secret-of-its-own" for name in ("good", "bad")}
GRANTS = """
[good]
secret = "{good}"
read = ["orders"]
write = ["orders"]
[bad]
secret = "{bad}"
read = ["mine*", "pubsub:mine*"]
write = ["mine*", "pubsub:mine*"]
events = ["mine.#"]
"""
BULK = "Sec-WebSocket-Protocol: busmq.bulk.v1"
DEFLATE = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
Attack = Callable[[int, random.Random], Awaitable[None]]


# -- attacks: each goes on until its process is ended ----------------------------------------------


async def opened(port: int, *lines: str) -> Raw:
    """Return a connection of the bad peer that nothing is read from."""
    return await Raw.open(port, "/bus", f"Authorization: Bearer {SECRETS['bad']}", *lines)


async def sent(raw: Raw, data: bytes) -> None:
    """Send and wait until the system has taken it; a peer that is cut off stops here."""
    raw.send(data)
    await raw.writer.drain()


async def for_ever(raw: Raw, data: bytes) -> None:
    while True:
        await sent(raw, data)


async def empty_fragments(port: int, chance: random.Random) -> None:
    raw = await opened(port)
    await sent(raw, frame(b"0", final=False))
    await for_ever(raw, frame(b"", 0, final=False) * chance.randrange(5_000, 20_000))


async def pings(port: int, chance: random.Random) -> None:
    await for_ever(await opened(port), frame(b"x", PING) * chance.randrange(1_000, 5_000))


async def unfinished_messages(port: int, chance: random.Random) -> None:
    await asyncio.gather(*(_unfinished(port, chance) for _ in range(40)), return_exceptions=True)


async def _unfinished(port: int, chance: random.Random) -> None:
    raw = await opened(port, *([BULK] if chance.random() < 0.5 else []))
    size = 16 * MIB - chance.randrange(100, 10_000)
    head = frame(b"", length=size)
    await sent(raw, head + bytes(size - 10))
    await asyncio.Event().wait()


async def unfinished_lines(port: int, chance: random.Random) -> None:
    async def one(number: int) -> None:
        raw = await opened(port)
        channel = b"%016d" % number
        await sent(raw, frame(channel + b"1" + make_creation("queue", "mine").encode()))
        await sent(raw, frame(channel + b"1" + b"x" * (16 * MIB - 1_000)))
        await asyncio.Event().wait()

    await asyncio.gather(*(one(number) for number in range(40)), return_exceptions=True)


async def bombs(port: int, chance: random.Random) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, -12)
    packed = packer.compress(b"0123456789abcdef1" + bytes(16 * MIB - 1_000))
    packed += packer.flush(zlib.Z_SYNC_FLUSH)
    message = bytearray(frame(packed[:-4]))
    message[0] |= 0x40
    raws = [await opened(port, DEFLATE) for _ in range(10)]
    await asyncio.gather(*(for_ever(raw, bytes(message)) for raw in raws), return_exceptions=True)


def called(kind: str, method: str, *values: object, handler: bool = False) -> bytes:
    """Return a call of an object; with ``handler`` its last argument is a function."""
    arguments = {str(place): value for place, value in enumerate(values)}
    callbacks = {}
    if handler:
        arguments[str(len(values))] = "[Function]"
        callbacks = {"0": ["0", str(len(values))]}
    line = {
        "method": list(METHODS_OF_TYPE[kind]).index(method),  # type: ignore[index]
        "arguments": [arguments],
        "callbacks": callbacks,
        "links": [],
    }
    return json.dumps(line).encode() + b"\n"


async def listeners(port: int, chance: random.Random) -> None:
    """Listen a hundred times on each of some objects, which then get large messages."""

    async def one(number: int) -> None:
        raw = await opened(port)
        channel = b"%016d1" % number
        await sent(raw, frame(channel + make_creation("pubsub", "mine").encode()))
        for _ in range(99):
            await sent(raw, frame(channel + called("pubsub", "on", "message", handler=True)))
        await sent(raw, frame(channel + called("pubsub", "subscribe", handler=True)))
        while await raw.reader.read(65_536):  # noqa: ASYNC110  # a slow reader
            await asyncio.sleep(chance.random() / 100)

    await asyncio.gather(*(one(number) for number in range(4)), return_exceptions=True)


async def consumers_that_never_read(port: int, chance: random.Random) -> None:
    raws = [await opened(port) for _ in range(4)]
    for raw in raws:
        for number in range(10):
            channel = b"%016d1" % number
            await sent(raw, frame(channel + make_creation("queue", "mine").encode()))
            await sent(raw, frame(channel + called("queue", "on", "message", handler=True)))
            await sent(raw, frame(channel + called("queue", "attach", {"ttl": 600})))
            await sent(raw, frame(channel + called("queue", "consume", {"remove": False})))
    await asyncio.Event().wait()


async def large_json(port: int, chance: random.Random) -> None:
    raw = await opened(port)
    channel = b"%016d1" % 1
    await sent(raw, frame(channel + make_creation("queue", "mine").encode()))
    values = ",".join(["[]", "{}", '"x"', "1"][chance.randrange(4)] for _ in range(90_000))
    line = b'{"method":0,"arguments":[{"0":[%b]}],"callbacks":{},"links":[]}\n' % values.encode()
    await for_ever(raw, frame(channel + line))


async def events(port: int, chance: random.Random) -> None:
    await asyncio.gather(*(asyncio.to_thread(_events, port, chance) for _ in range(4)))


def _events(port: int, chance: random.Random) -> None:
    store = FederationBulkStore(address(port, "bad"))
    store.attach(["mine"], QueueCreateOptions(True, 3600, 0))
    while True:
        with suppress(BusError):
            store.subscribe_events("mine", [f"mine.{chance.random()}"], chance.random() < 0.5)
            store.event_queues([[f"mine.{n}.{m}" for m in range(5)] for n in range(2_000)])


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        empty_fragments,
        pings,
        unfinished_messages,
        unfinished_lines,
        bombs,
        listeners,
        consumers_that_never_read,
        large_json,
        events,
    )
}


def attack_for_ever(name: str, port: int, seed: int) -> None:
    """Run an attack, and begin anew whenever the server ends it."""
    chance = random.Random(seed)
    os.nice(10)
    while True:
        with suppress(OSError, BusError, asyncio.IncompleteReadError):
            asyncio.run(ATTACKS[name](port, chance))
        time.sleep(0.05)  # a peer that is cut off comes back


# -- measuring -------------------------------------------------------------------------------------


def address(port: int, who: str) -> FederationAddress:
    return FederationAddress(f"ws://127.0.0.1:{port}/bus", SECRETS[who])


class Meter:
    """What ``/livez`` and the calls of the good peer take while a block runs."""

    def __init__(self, port: int, store: FederationBulkStore) -> None:
        self._port, self._store = port, store
        self._end = threading.Event()
        self.livez_s: list[float] = []
        self.calls_s: list[float] = []

    def _ask_livez(self) -> None:
        url = f"http://127.0.0.1:{self._port}/livez"
        while not self._end.wait(0.02):
            begun = time.perf_counter()
            with suppress(OSError):
                urllib.request.urlopen(url, timeout=60).read()
            self.livez_s.append(time.perf_counter() - begun)

    def run(self, seconds: float) -> None:
        """Measure for so long."""
        thread = threading.Thread(target=self._ask_livez)
        thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.perf_counter()
            with suppress(BusError):  # late enough to be a violation
                self._store.states({"orders": -1})
            self.calls_s.append(time.perf_counter() - begun)
            time.sleep(0.01)  # one call after the other, with the machine free in between
        self._end.set()
        thread.join()


def feed(redis_url: str, end: threading.Event) -> None:
    """Push and publish large messages until ``end``."""
    with Bus.sync(redis_url) as bus, bus.queue("mine") as mine, bus.pubsub("mine") as news:
        mine.push_many(["x" * MIB] * 15)
        while not end.wait(0.5):
            news.publish("x" * 2 * MIB)


def run(seconds: float, seed: int) -> int:
    """Measure alone and beside each attack; return the number of violations."""
    table = Table("beside", "/livez worst (s)", "call median (ms)", "times alone", "")
    bad = 0
    with (
        EmbeddedRedis() as redis,
        tempfile.TemporaryDirectory() as folder,
        Serving(redis.url, Path(folder), GRANTS.format(**SECRETS), "--compression") as server,
        fed(redis.url),
    ):
        store = FederationBulkStore(address(server.port, "good"))
        store.attach(["orders"], QueueCreateOptions(True, 3600, 0))
        alone = 0.0
        for name in ("nobody", *ATTACKS):
            meter = Meter(server.port, store)
            with attacked(name, server.port, seed):
                meter.run(seconds)
            call, worst = median(meter.calls_s), max(meter.livez_s, default=seconds)
            alone = alone or call
            fails = worst > LIVEZ_S or call > TIMES_ALONE * alone
            bad += fails
            verdict = "[red]violated" if fails else "kept"
            figures = f"{worst:.3f}", f"{call * 1e3:.2f}", f"{call / alone:.1f}"
            table.add_row(name, *figures, verdict)
        store.close()
    Console(width=100).print(table)
    print(f"seed {seed}: {bad} violations")
    return bad


@contextmanager
def fed(redis_url: str) -> Iterator[None]:
    """Publish large messages to the objects of the bad peer, as a program beside the server."""
    end = threading.Event()
    feeder = threading.Thread(target=feed, args=(redis_url, end))
    feeder.start()
    try:
        yield
    finally:
        end.set()
        feeder.join()


@contextmanager
def attacked(name: str, port: int, seed: int) -> Iterator[None]:
    """Run an attack in a process of its own; ``nobody`` is none."""
    if name not in ATTACKS:
        yield
        return
    words = ["--attack", name, "--port", str(port), "--seed", str(seed)]
    process = subprocess.Popen([sys.executable, "-m", "tests.soak.fairness", *words])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack")
    parser.add_argument("--seed", type=int, default=20261128)
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack:
        attack_for_ever(given.attack, given.port, given.seed)
    sys.exit(run(given.seconds, given.seed) > 0)


if __name__ == "__main__":
    main()
