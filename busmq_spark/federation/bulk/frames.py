"""Frames of ``busmq.bulk.v1``, the sub-protocol for Spark and Python: values with ``encode`` and
``decode``. A binary message is a frame:

    kind u8 | id u32 | length of head u32 | head: JSON, blanks after it | body

Numbers are little endian. The body begins at a multiple of 64, so Arrow uses it where it lies.

Rule 1. The client asks with CALL under an id of its own. REPLY or ERROR with that id ends the call.
Rule 2. ``read`` is answered with SCHEMA, then ROWS (an Arrow IPC record batch each, the id of its
        first row in the head), then END or ERROR. Bodies of ROWS use up credit, which the call
        brings and CREDIT adds to. While there is none left, nothing is sent. CANCEL ends it.
        ``read_with_spans`` is answered with SPANS before that: the states of the queues before any
        row was read.
Rule 3. Whatever comes in, decoding gives a frame or raises WireError, and needs no more
        memory than a few times the message.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import pyarrow as pa

from busmq_spark.errors import BusError, WireError
from busmq_spark.federation import error_codec
from busmq_spark.federation.bounded_json import MAX_JSON_VALUES, has_too_many_values
from busmq_spark.queue.message import refuse_constant

PROTOCOL_VERSION = 1
MAX_CALL_ID = 2**32 - 1
MAX_WHOLE_NUMBER = 2**53
MAX_HEAD_BYTES = 4 * 1024 * 1024
"""Longest head of a call: some ten thousand queues or staged lists. The objects that JSON and
Python make of it take a multiple.
"""
_BODY_ALIGNMENT = 64
_PREFIX_FORMAT, _PREFIX_BYTES = "<BII", 9
_COUNT_FORMAT, _COUNT_BYTES = "<I", 4
_BINARY_SCHEMA = pa.schema([pa.field("value", pa.binary(), nullable=False)])
_LARGE_BINARY_SCHEMA = pa.schema([pa.field("value", pa.large_binary(), nullable=False)])


class BulkFrameKind(IntEnum):
    """The kind of a frame."""

    CALL = 1
    REPLY = 2
    ERROR = 3
    SCHEMA = 4
    ROWS = 5
    END = 6
    CREDIT = 7
    CANCEL = 8
    SPANS = 9


@dataclass(frozen=True, slots=True)
class BulkProtocolFrame:
    """A frame. ``head`` is what JSON can express; ``body`` is bytes, or a view of them."""

    kind: BulkFrameKind
    id: int
    head: Any = None
    body: Any = b""

    def encode(self) -> bytes:
        """The message."""
        return b"".join((self.encode_head(), self.body))

    def encode_head(self) -> bytes:
        """Everything before the body."""
        head = json.dumps(self.head, separators=(",", ":"), allow_nan=False).encode("ascii")
        blanks = -(_PREFIX_BYTES + len(head)) % _BODY_ALIGNMENT if len(self.body) else 0
        return b"".join(
            (
                struct.pack(_PREFIX_FORMAT, self.kind, self.id, len(head) + blanks),
                head,
                b" " * blanks,
            )
        )


def decode_frame(message: bytes | memoryview | str) -> BulkProtocolFrame:
    """The frame of a message; its body is a view of the message. Raises WireError."""
    if isinstance(message, str):
        raise make_wire_error("a text message", "binary ones only")
    view = memoryview(message)
    if len(view) < _PREFIX_BYTES:
        raise make_wire_error(f"{len(view)} bytes", f"at least {_PREFIX_BYTES}")
    kind, id, length = struct.unpack_from(_PREFIX_FORMAT, view)
    start = _PREFIX_BYTES + length
    if start > len(view):
        raise make_wire_error(
            f"a head of {length} bytes in a message of {len(view)}", "one that is there"
        )
    if kind not in BulkFrameKind._value2member_map_:
        raise make_wire_error(
            f"frame kind {kind}", f"one of {', '.join(k.name for k in BulkFrameKind)}"
        )
    return BulkProtocolFrame(
        BulkFrameKind(kind), id, _decode_json(view[_PREFIX_BYTES:start]), view[start:]
    )


def announced_head_length(message: bytes | str) -> int:
    """Return the announced length of a message's head."""
    return (
        int(struct.unpack_from(_PREFIX_FORMAT, message)[2])
        if isinstance(message, bytes) and len(message) >= _PREFIX_BYTES
        else 0
    )


def _decode_json(head: memoryview) -> Any:
    if has_too_many_values(text := bytes(head)):
        raise make_wire_error(
            f"a head of {len(text)} bytes with more than {MAX_JSON_VALUES} values", "fewer"
        )
    try:
        return json.loads(
            text.decode(), parse_constant=refuse_constant, parse_float=refuse_constant
        )
    except (ValueError, RecursionError):
        raise make_wire_error(
            "a head that is no JSON of ours", "JSON in UTF-8, without fractions"
        ) from None


def make_wire_error(found: str, expected: str) -> WireError:
    """The error for what a peer sent; both texts are ours, or numbers of the peer."""
    return WireError(found=found, expected=expected)


def pack_values(values: Sequence[bytes]) -> bytes:
    """The body of a CALL that brings values: how many, their lengths, then they themselves."""
    return b"".join(
        (
            struct.pack(_COUNT_FORMAT, len(values)),
            struct.pack(f"<{len(values)}I", *map(len, values)),
            *values,
        )
    )


def unpack_values(body: bytes | memoryview) -> list[bytes]:
    """The inverse. Raises WireError unless the lengths add up to exactly what is there."""
    view = memoryview(body)
    count = struct.unpack_from(_COUNT_FORMAT, view)[0] if len(view) >= _COUNT_BYTES else 0
    at = _COUNT_BYTES * (1 + count)
    if not count or at > len(view):
        raise make_wire_error(
            f"a list of {count} values in {len(view)} bytes", "at least one, and all of them"
        )
    lengths = struct.unpack_from(f"<{count}I", view, _COUNT_BYTES)
    if at + sum(lengths) != len(view):
        raise make_wire_error(
            f"values of {sum(lengths)} bytes in {len(view) - at}", "lengths that add up"
        )
    values = []
    for length in lengths:
        values.append(bytes(view[at : at + length]))
        at += length
    return values


def rows_schema(values: Any) -> Any:
    """The schema of ROWS that carry this Arrow array: one column ``value``, binary, or large_binary
    beyond 2 GB.
    """
    return _LARGE_BINARY_SCHEMA if pa.types.is_large_binary(values.type) else _BINARY_SCHEMA


def encode_schema(schema: Any) -> Any:
    """The body of SCHEMA."""
    return schema.serialize()


def decode_schema(body: bytes | memoryview) -> Any:
    """The schema in the body of SCHEMA. Raises WireError for any but our two."""
    for known in (_BINARY_SCHEMA, _LARGE_BINARY_SCHEMA):
        if bytes(body) == known.serialize().to_pybytes():
            return known
    try:
        found = pa.ipc.read_schema(pa.py_buffer(body))
    except (pa.ArrowException, OSError, EOFError):
        raise make_wire_error("no Arrow schema", "one") from None
    for known in (_BINARY_SCHEMA, _LARGE_BINARY_SCHEMA):
        if found.equals(known):
            return known
    raise make_wire_error(
        f"an Arrow schema of {len(found)} columns",
        "one column 'value' of binary or large_binary, not nullable",
    )


def encode_rows(values: Any) -> Any:
    """The body of ROWS: an Arrow IPC record batch, as an Arrow buffer."""
    # Arrow's own pool keeps what it once had, for each thread: a server that was busy for a moment
    # would stay large for ever (measured).
    return pa.RecordBatch.from_arrays([values], schema=rows_schema(values)).serialize(
        memory_pool=pa.system_memory_pool()
    )


def _has_compressed_buffers(metadata: bytes) -> bool:
    """Whether the record batch that this flatbuffer describes has compressed buffers, each with a
    length that Arrow would allocate unchecked.
    """

    def field_position(table: int, number: int) -> int:
        """Return the position of a field of the table; 0 when it has none."""
        vtable = table - struct.unpack_from("<i", metadata, table)[0]
        if vtable < 0 or 4 + 2 * number >= struct.unpack_from("<H", metadata, vtable)[0]:
            return 0
        offset: int = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)[0]
        return table + offset if offset else 0

    root: int = struct.unpack_from(_COUNT_FORMAT, metadata)[0]
    header = field_position(root, 2)
    return bool(
        header
        and field_position(header + struct.unpack_from(_COUNT_FORMAT, metadata, header)[0], 3)
    )


def decode_rows(body: bytes | memoryview, schema: Any) -> Any:
    """The Arrow array in the body of ROWS; it uses the memory of ``body``. Raises
    WireError.
    """
    buffer = pa.py_buffer(body)
    try:
        message = pa.ipc.read_message(buffer)
        if _has_compressed_buffers(message.metadata.to_pybytes()):
            raise make_wire_error(
                "a compressed record batch", "rows that are all there, not compressed"
            )
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError, EOFError, struct.error):
        raise make_wire_error("no Arrow record batch of the schema", "one") from None
    values = batch.column(0)
    if not len(values) or values.null_count or values.nbytes > len(buffer):
        raise make_wire_error(
            f"a record batch of {len(values)} rows, {values.null_count} of them null",
            "rows that are all there, not compressed",
        )
    return values


def encode_error(error: BusError) -> dict[str, Any]:
    """The head of ERROR: what of an error crosses the wire, its details as plain values."""
    wire_error = error_codec.error_to_wire(error)
    details = {
        name: value if isinstance(value, str | int | None) else str(value)
        for name, value in wire_error["details"].items()
    }
    return {"code": wire_error["code"], "details": details, "text": wire_error["message"]}


def decode_error(head: Any, url: str) -> BusError:
    """Return the decoded error, or RemoteError for a code that this version does not know.
    ``url`` is the server asked. Raises WireError.
    """
    if (
        not isinstance(head, dict)
        or not isinstance(head.get("code"), str)
        or not isinstance(head.get("details"), dict)
    ):
        raise make_wire_error("an error of another form", "a code and details")
    code = _printable(head["code"])[:100]
    details = {
        _printable(name): _printable(value) if isinstance(value, str) else value
        for name, value in head["details"].items()
    }
    if any(not isinstance(value, str | int | None) for value in details.values()):
        raise make_wire_error("an error whose details are no plain values", "texts and numbers")
    if code == "BUSMQ_FEDERATION_REFUSED":
        details["url"] = url
    return error_codec.error_from_wire(
        {"code": code, "message": _printable(str(head.get("text"))), "details": details},
        _ERROR_OF_CODE,
    )


def _printable(text: str) -> str:
    """Return text that a log may show: without control characters, and cut."""
    return re.sub(r"[^\x20-\x7e\xa0-\U0010ffff]", "�", text[: error_codec.MAX_ERROR_TEXT])


def _errors_by_code() -> dict[str, type[BusError]]:
    """Every error by its code; of those that share one, the first."""
    found: dict[str, type[BusError]] = {}
    line: list[type[BusError]] = [BusError]
    for cls in line:
        line += cls.__subclasses__()
        if cls.__module__.startswith(BusError.__module__):
            found.setdefault(cls.code, cls)
    return found


_ERROR_OF_CODE = (
    _errors_by_code()
)  # and not when it is first asked for: pickled by value, the package has only what is referred to
