"""Malformed handshakes, sequences and bulk calls against a live server: it stays up, and keeps
nothing of them.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

import pytest

from busmq_spark.federation.bulk import frames
from busmq_spark.federation.bulk.frames import BulkFrameKind, BulkProtocolFrame
from busmq_spark.federation.bulk.operations import OPERATIONS
from busmq_spark.federation.gate.handshake import BULK_SUBPROTOCOL
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.npm_wire.channels import METHODS_OF_TYPE, make_creation
from tests.conftest import Fresh
from tests.federation.abused import (
    PATH,
    ROOM,
    SECRET,
    Served,
    farewell,
    honest,
    push_through,
    works,
)
from tests.federation.conftest import Serve
from tests.federation.every_operation import arguments
from tests.federation.hostile import SEED, Bender
from tests.federation.raw import BINARY, CHANNEL, CLOSE, PING, TEXT, Raw, frame, request
from tests.federation.test_abuse_codecs import LINES
from tests.support import FACTOR

pytestmark = [pytest.mark.redis, pytest.mark.fault]
HANDSHAKES, SEQUENCES, BULKS = 500 * FACTOR, 2_000 * FACTOR, 250 * FACTOR
MARK = b"f" * 16


# -- handshakes ------------------------------------------------------------------------------------

HEADS = [
    request(PATH),
    request(
        "/bus", f"Authorization: Bearer {SECRET}", f"Sec-WebSocket-Protocol: {BULK_SUBPROTOCOL}"
    ),
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


async def test_malformed_handshakes_are_ended_and_leave_nothing(
    served: Served, fresh: Fresh
) -> None:
    await works(served, fresh)
    before, bender = served.memory, Bender(HEADS)
    heads = bender.inputs(HANDSHAKES)

    async def shake() -> None:
        for head in heads:
            raw = await Raw.dial(served.port)
            raw.send(head)
            with suppress(OSError):
                raw.writer.write_eof()
            async with asyncio.timeout(60):
                await raw.drained()
            await raw.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(shake())
    await served.recovers(before)
    await works(served, fresh)


async def test_a_head_that_does_not_end_is_not_kept(federation: Serve) -> None:
    # Not by its deadline, but by its length.
    async with federation(limits=PeerLimits(handshake_s=200)) as (_, server), asyncio.timeout(100):
        raw = await Raw.dial(server.port)
        raw.send(request(PATH)[:-2])
        with suppress(OSError):
            for number in range(100):
                raw.send(f"X-{number}: {'x' * 8000}\r\n".encode())
                await raw.writer.drain()
        await raw.drained()
        await raw.close()


# -- sequences -------------------------------------------------------------------------------------


def sequence(
    bender: Bender, creations: Bender, chance: random.Random, channel: bytes
) -> list[bytes]:
    """A channel's life gone wrong, each frame of it sound: the socket survives it."""
    bodies = [creations.one(), *(bender.one() for _ in range(chance.randint(0, 3)))]
    made = [frame(channel + b"1" + (body or b"x")) for body in bodies]
    if chance.random() < 0.7:
        made.append(frame(channel + b"2"))
    if chance.random() < 0.2:
        chance.shuffle(made)
    return made


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


async def test_malformed_sequences_end_their_channel_or_socket_only(
    served: Served, fresh: Fresh
) -> None:
    await works(served, fresh)
    before, chance = served.memory, random.Random(SEED)
    names = [fresh("abused") for _ in range(5)]
    creations = Bender(
        [make_creation(kind, name).encode() for kind in METHODS_OF_TYPE for name in names], SEED
    )
    calls = [
        json.dumps(
            {"method": method, "arguments": [arguments], "callbacks": {"900": ["0", "1"]}}
        ).encode()
        + b"\n"
        for method in range(21)
        for arguments in (
            {"0": {"ttl": 1e400, "max": -1, "reliable": True}, "1": "f"},
            {"0": "x" * 50, "1": "f"},
            {"0": 2**60, "1": "f"},
        )
    ]
    bender, left, peer = (
        Bender([*LINES, *calls], SEED + 1),
        iter(range(SEQUENCES)),
        await honest(served.port, names[0]),
    )

    answered: set[bytes] = set()

    async def misbehave() -> None:
        while batch := [f"{number:016d}".encode() for number in islice(left, 25)]:
            raw = await Raw.open(served.port, PATH)
            sent = b"".join(
                piece for channel in batch for piece in sequence(bender, creations, chance, channel)
            )
            writing = asyncio.create_task(
                push_through(
                    raw, sent + frame(MARK + b"1" + make_creation("pubsub", "mark").encode())
                )
            )
            with suppress(asyncio.IncompleteReadError):
                while True:
                    opcode, payload = await asyncio.wait_for(raw.message(), 60)
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
    await served.recovers(before)
    await works(served, fresh)


def bulk_calls(queue: str) -> list[bytes]:
    """Sound calls of bulk, most with arguments that make sense."""
    body = frames.pack_values([b"a", b"bc" * 100])
    calls = [
        BulkProtocolFrame(
            BulkFrameKind.CALL,
            number,
            {"op": name, "args": args},
            body if OPERATIONS[name].has_body else b"",
        ).encode()
        for number, (name, args) in enumerate(arguments(queue).items())
    ]
    return [
        *calls,
        BulkProtocolFrame(BulkFrameKind.CREDIT, 14, 4096).encode(),
        BulkProtocolFrame(BulkFrameKind.CANCEL, 14).encode(),
    ]


async def test_malformed_bulk_ends_its_socket_at_most(served: Served, fresh: Fresh) -> None:
    await works(served, fresh)
    chance, sound = random.Random(SEED), bulk_calls(fresh("abused"))
    bender = Bender(sound, SEED)

    async def misbehave(left: Iterator[int]) -> None:
        for _ in left:
            raw = await Raw.open(
                served.port,
                "/bus",
                f"Authorization: Bearer {SECRET}",
                f"Sec-WebSocket-Protocol: {BULK_SUBPROTOCOL}",
            )
            for _ in range(chance.randint(1, 8)):
                raw.send(frame(bender.one() if chance.random() < 0.6 else chance.choice(sound)))
            if chance.random() < 0.1:
                raw.send(chance.choice(BROKEN))
            await farewell(raw)
            await raw.close()

    for room in (
        4 * ROOM,
        2 * ROOM,
        # What comes with the first half stays: Arrow's library, the threads and a heap for each;
        # more does not come
    ):
        before, left = served.memory, iter(range(BULKS // 2))
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(misbehave(left))
        await served.recovers(before, room)
    await works(served, fresh)
