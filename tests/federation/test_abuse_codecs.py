"""What strangers send first meets the codecs: mutated and truncated inputs (in ``make soak`` a
million) raise ProtocolError or are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pytest

from busmq_spark.errors import BusError, ProtocolError
from busmq_spark.federation.bulk import frames
from busmq_spark.federation.bulk.frames import BulkFrameKind, BulkProtocolFrame, decode_error
from busmq_spark.federation.bulk.operations import OPERATIONS
from busmq_spark.federation.gate.handshake import (
    BULK_SUBPROTOCOL,
    HandshakeAcceptance,
    WebSocketHandshakePolicy,
    decide_handshake,
)
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.rights import Grants
from busmq_spark.federation.npm_wire.channels import (
    METHODS_OF_TYPE,
    MuxPacket,
    ObjectCreationMessage,
    make_creation,
)
from busmq_spark.federation.npm_wire.dnode import DnodeMessage, LineBuffer
from tests.federation.hostile import Bender
from tests.support import FACTOR

SECRET = "a-secret-of-some-length"
RING = Keyring(
    {
        "all": (SECRET, Grants.all_allowed()),
        "other": ("another-secret-of-some-length", Grants.all_allowed()),
    }
)
POLICY = WebSocketHandshakePolicy(RING, origins=("https://app.example.com",))
TOKEN = RING.sign("all", 3600, {"read": ["orders-*"]})

LINES = [
    b'{"method":13,"arguments":[{"0":"hello","1":"[Function]"}],"callbacks":{"6":["0","1"]},"links":[]}\n',
    b'{"method":0,"arguments":[{"0":"message","1":"[Function]"}],"callbacks":{"1":["0","1"]},"links":[]}\n',
    b'{"method":"methods","arguments":[{"on":"[Function]"}],"callbacks":{"0":["0","on"]},"links":[{"from":["0"],"to":["0","on"]}]}\n',
    (
        b'{"method":3,"arguments":["\xc5\xbelut\xc3\xbd'
        b' \xf0\x9f\x98\x80",1,null,[1.5,{"a":[true]}]],"callbacks":{},"links":[]}\n'
    ),
    b'{"method":"cull","arguments":[3]}\n',
    b'{"method":18,"arguments":[{"0":{"reliable":true,"max":5,"throttle":"[Function]"}}],"callbacks":{"9":["0","0","throttle"]},"links":[]}\n',
]
CREATIONS = [
    make_creation("queue", "orders").encode(),
    make_creation("channel", "chat", "local", "remote").encode(),
    make_creation("pubsub", "bus:notifications").encode(),
    make_creation("persistify", "state", {}, ["a", "b"]).encode(),
    make_creation("service", "sums").encode(),
    ObjectCreationMessage("service", METHODS_OF_TYPE["service"], None).encode(),
]
PACKETS = [
    MuxPacket("0123456789abcdef", body).encode() for body in (*LINES, *CREATIONS, None, b"ready")
]
REQUESTS = [
    f"/bus?secret={SECRET}",
    f"/bus?secret={TOKEN}\nOrigin: https://app.example.com",
    f"/bus\nAuthorization: Bearer {SECRET}\nSec-WebSocket-Protocol: {BULK_SUBPROTOCOL}",
    "/bus?a=%41%C3%A9+&secret=%2B%zz\nOrigin: null\nOrigin: x",
    "/healthz",
]

BULK_SCHEMA = frames.rows_schema(pa.array([b"x"]))
FRAMES = [
    BulkProtocolFrame(BulkFrameKind.CALL, 1, {"op": "hello", "args": [1, "client"]}).encode(),
    BulkProtocolFrame(
        BulkFrameKind.CALL,
        2,
        {"op": "stage", "args": ["orders", "bus:queue:orders:stage:x", 9]},
        frames.pack_values([b"a", b"bc"]),
    ).encode(),
    BulkProtocolFrame(
        BulkFrameKind.CALL, 3, {"op": "ack", "args": [{"orders": ["5f", 9, "", None, 0]}, ""]}
    ).encode(),
    BulkProtocolFrame(
        BulkFrameKind.CALL, 4, {"op": "read", "args": [["orders", "5f", 1, 9, 0], True, 1000]}
    ).encode(),
    BulkProtocolFrame(BulkFrameKind.REPLY, 1, [1, False, 1000]).encode(),
    BulkProtocolFrame(
        BulkFrameKind.ERROR,
        1,
        {"code": "BUSMQ_QUEUE_MISSING", "details": {"queue": "h"}, "text": "it is missing"},
    ).encode(),
    BulkProtocolFrame(
        BulkFrameKind.ROWS,
        1,
        {"first": 1},
        frames.encode_rows(pa.array([b"a", b"", b"ccc"])).to_pybytes(),
    ).encode(),
    BulkProtocolFrame(BulkFrameKind.CREDIT, 1, 4096).encode(),
]


def read_packet(data: bytes) -> None:
    packet = MuxPacket.decode(data)
    assert MuxPacket.decode(packet.encode()) == packet


def read_line(data: bytes) -> None:
    line = DnodeMessage.decode(data)
    line.values()
    line.call_values()


def read_lines(data: bytes) -> None:
    lines = LineBuffer(1000)
    for at in range(0, len(data), 7):
        for line in lines.feed(data[at : at + 7]):
            assert b"\n" not in line
            DnodeMessage.decode(line)


def read_creation(data: bytes) -> None:
    made = ObjectCreationMessage.decode(data)
    assert made.type in METHODS_OF_TYPE
    assert isinstance(made.name, str)
    assert len(made.roles) == 2
    json.loads(made.encode())


def read_request(data: bytes) -> None:
    target, *lines = data.decode("latin-1").split("\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    found = decide_handshake(target, headers, POLICY)
    if isinstance(found, HandshakeAcceptance):
        assert SECRET in target + str(headers) or TOKEN in target + str(headers)


def read_token(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    assert (RING.identify_either(text) is None) == (text not in (TOKEN, SECRET))


def read_bulk(data: bytes) -> None:
    found = frames.decode_frame(data)
    if (
        found.kind is BulkFrameKind.CALL
        and isinstance(found.head, dict)
        and (operation := OPERATIONS.get(str(found.head.get("op"))))
    ):
        operation.decode_arguments(found.head.get("args"))
        frames.unpack_values(found.body)
    elif found.kind is BulkFrameKind.REPLY:
        OPERATIONS["hello"].decode_result(found.head)
    elif found.kind is BulkFrameKind.ERROR:
        assert isinstance(decode_error(found.head, "ws://x"), BusError)
    elif found.kind is BulkFrameKind.ROWS:
        frames.decode_rows(found.body, BULK_SCHEMA).to_pylist()


CODECS: list[tuple[Callable[[bytes], None], list[bytes], float]] = [
    (read_packet, PACKETS, 0.2),
    (read_line, LINES, 0.2),
    (read_lines, [b"".join(LINES), *LINES], 0.05),
    (read_creation, CREATIONS, 0.175),
    (read_request, [request.encode() for request in REQUESTS], 0.125),
    (read_token, [TOKEN.encode(), SECRET.encode()], 0.1),
    (read_bulk, FRAMES, 0.15),
]
IN_ALL = 100_000 * FACTOR


def test_the_shares_add_up() -> None:
    assert sum(share for *_, share in CODECS) == pytest.approx(1)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("read", "samples", "share"), CODECS, ids=lambda value: getattr(value, "__name__", "")
)
def test_nothing_but_a_protocol_error_comes_out(
    read: Callable[[bytes], None], samples: list[bytes], share: float
) -> None:
    refused, count = 0, round(IN_ALL * share)
    for data in Bender(samples).inputs(count):
        try:
            read(data)
        except ProtocolError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{read.__name__} raised {error!r} for {data[:300]!r}") from error
    assert read in (read_request, read_token) or count / 4 < refused < count * 0.95, (
        "too few or too many are sound for this to show anything"
    )
