"""The operations of ``busmq.bulk.v1``: one table with the server side of each, and the JSON of
their arguments, results and errors.

Values are lists in the order of their fields. Decoding checks every type; nothing from the wire
picks a class, a method or a key by name other than through the tables here.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from busmq_spark.errors import BusError
from busmq_spark.federation import error_codec
from busmq_spark.federation.bulk.frames import MAX_WHOLE_NUMBER, make_wire_error
from busmq_spark.federation.bulk.operation_rights import (
    ADMIN_VERBS,
    BROWSE_VERBS,
    CONSUME_VERBS,
    PUSH_VERBS,
    rights_on_any_queue,
    rights_on_lists,
    rights_on_queues,
    rights_on_sink,
    rights_on_topic,
    rights_to_begin,
    rights_to_commit,
    rights_to_consume,
    rights_to_keep_alive,
    rights_to_stage,
    rights_to_subscribe_events,
    rights_to_take_commands,
)
from busmq_spark.federation.gate.grants import VERBS
from busmq_spark.federation.gate.rights import RequiredRight
from busmq_spark.queue.position import Position, Range
from busmq_spark.queue.queue import AttachResult
from busmq_spark.reading.reader_operations import AckResult, QueueState
from busmq_spark.reading.times_of_ids import TimeLookupResult, TimesOfIds
from busmq_spark.store.protocol import LossCauseEvidence, QueueCreateOptions
from busmq_spark.writing.mirror import OriginQueueState
from busmq_spark.writing.sink import CommitStoppedAtMaxsize, StagedList
from busmq_spark.writing.sink_runs import SinkRun

MAX_TEXT_LENGTH = 4096
"""Longest name, token or key."""
MAX_EVENT_KEYS_PER_CALL = 10_000
"""Keys of all events together in one call of ``event_queues``."""


@dataclass(frozen=True, slots=True)
class BulkJsonCodec:
    """The JSON form of one kind of value. ``decode`` raises ValueError, which says what was
    expected.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _return_unchanged(value: Any) -> Any:
    return value


def _decode_text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT_LENGTH:
        raise ValueError(f"a text of at most {MAX_TEXT_LENGTH} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("a text that UTF-8 can express") from None
    return value


def _decode_whole_number(value: Any) -> int:
    if type(value) is not int or abs(value) > MAX_WHOLE_NUMBER:
        raise ValueError("a whole number of at most 53 bits")
    return value


def _decode_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _decode_base64(value: Any) -> bytes:
    return base64.b64decode(_decode_text(value).encode("ascii"), validate=True)


def _decode_subscription_start(value: Any) -> str | int:
    if value in ("earliest", "latest") and isinstance(value, str):
        return value
    return _decode_whole_number(value)


TEXT, WHOLE_NUMBER, FLAG, START_CODEC = (
    BulkJsonCodec(_return_unchanged, _decode_text),
    BulkJsonCodec(_return_unchanged, _decode_whole_number),
    BulkJsonCodec(_return_unchanged, _decode_flag),
    BulkJsonCodec(_return_unchanged, _decode_subscription_start),
)
BASE64_CODEC = BulkJsonCodec(lambda value: base64.b64encode(value).decode(), _decode_base64)


def or_null(shape: BulkJsonCodec) -> BulkJsonCodec:
    """Null, or the shape."""
    return BulkJsonCodec(
        lambda v: None if v is None else shape.encode(v),
        lambda v: None if v is None else shape.decode(v),
    )


NULL_CODEC = or_null(BulkJsonCodec(_return_unchanged, lambda _: _raise_value_error("null")))


def _raise_value_error(expected: str) -> None:
    raise ValueError(expected)


def list_of(shape: BulkJsonCodec) -> BulkJsonCodec:
    """A list of them; decoded to a tuple."""

    def decode(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError("a list")
        return tuple(shape.decode(item) for item in value)

    return BulkJsonCodec(lambda values: [shape.encode(item) for item in values], decode)


def map_of(shape: BulkJsonCodec) -> BulkJsonCodec:
    """From texts to them."""

    def decode(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError("an object")
        return {_decode_text(key): shape.decode(item) for key, item in value.items()}

    return BulkJsonCodec(
        lambda values: {key: shape.encode(item) for key, item in values.items()}, decode
    )


def tuple_of(*shapes: BulkJsonCodec) -> BulkJsonCodec:
    """A tuple, each place with a shape of its own."""
    return codec_of_fields(lambda *values: values, lambda value: value, *shapes)


def record_of(cls: type[Any], *shapes: BulkJsonCodec) -> BulkJsonCodec:
    """A dataclass, as the list of its fields."""
    names = list(cls.__dataclass_fields__)
    return codec_of_fields(cls, lambda value: [getattr(value, name) for name in names], *shapes)


def codec_of_fields(
    make: Callable[..., Any], fields: Callable[[Any], Sequence[Any]], *shapes: BulkJsonCodec
) -> BulkJsonCodec:
    """Anything that is made of so many fields."""

    def decode(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(shapes):
            raise ValueError(f"a list of {len(shapes)}")
        return make(*(shape.decode(item) for shape, item in zip(shapes, value, strict=True)))

    return BulkJsonCodec(
        lambda value: [
            shape.encode(item) for shape, item in zip(shapes, fields(value), strict=True)
        ],
        decode,
    )


NAMES = list_of(TEXT)
POSITION_CODEC = codec_of_fields(
    Position, tuple, TEXT, WHOLE_NUMBER, TEXT, or_null(WHOLE_NUMBER), WHOLE_NUMBER
)
RANGE_CODEC = codec_of_fields(Range, tuple, TEXT, TEXT, WHOLE_NUMBER, WHOLE_NUMBER, WHOLE_NUMBER)
QUEUE_CREATION_CODEC = record_of(QueueCreateOptions, FLAG, WHOLE_NUMBER, WHOLE_NUMBER)
ATTACH_RESULT_CODEC = record_of(AttachResult, FLAG, WHOLE_NUMBER, WHOLE_NUMBER, TEXT, FLAG)
ORIGIN_STATE_CODEC = record_of(
    OriginQueueState,
    WHOLE_NUMBER,
    TEXT,
    WHOLE_NUMBER,
    WHOLE_NUMBER,
    WHOLE_NUMBER,
    WHOLE_NUMBER,
    TEXT,
    TEXT,
    TEXT,
)
QUEUE_STATE_CODEC = record_of(
    QueueState,
    WHOLE_NUMBER,
    TEXT,
    WHOLE_NUMBER,
    WHOLE_NUMBER,
    WHOLE_NUMBER,
    WHOLE_NUMBER,
    WHOLE_NUMBER,
    TEXT,
    TEXT,
    WHOLE_NUMBER,
)
TIME_LOOKUP_RESULT_CODEC = record_of(
    TimeLookupResult, WHOLE_NUMBER, WHOLE_NUMBER, WHOLE_NUMBER, WHOLE_NUMBER, WHOLE_NUMBER
)
TIMES_OF_IDS_CODEC = codec_of_fields(
    TimesOfIds, tuple, TEXT, list_of(tuple_of(WHOLE_NUMBER, WHOLE_NUMBER))
)
ACK_RESULT_CODEC = record_of(AckResult, TEXT, TEXT)
REMOVAL_TRACES_CODEC = codec_of_fields(
    LossCauseEvidence,
    lambda traces: (traces.unacked, traces.listeners, traces.empty),
    or_null(tuple_of(WHOLE_NUMBER, WHOLE_NUMBER)),
    WHOLE_NUMBER,
    FLAG,
)
STAGED_LIST_CODEC = record_of(
    StagedList,
    TEXT,
    WHOLE_NUMBER,
    TEXT,
    list_of(tuple_of(WHOLE_NUMBER, WHOLE_NUMBER)),
    or_null(WHOLE_NUMBER),
    WHOLE_NUMBER,
)
PARTIAL_COMMIT_CODEC = record_of(CommitStoppedAtMaxsize, TEXT, WHOLE_NUMBER, WHOLE_NUMBER)
SINK_RUN_CODEC = record_of(SinkRun, TEXT, WHOLE_NUMBER, NAMES)


@dataclass(frozen=True, slots=True)
class ServerHello:
    """A server's first message to a client: how it spells keys, and how long a message to it may
    be.
    """

    version: int
    cluster: bool
    message_bytes: int


class RpcTarget(Enum):
    """The server side of an operation, which has a method of its name."""

    STORE = "the store, as it is"
    PEER = "bulk/rpc_handler.py, which checks and spells what a peer may name"
    SESSION = "the connection (bulk/server.py), in its turn"
    CONCURRENT = (
        "the connection, beside the other calls since it may take for ever; of a read, as many rows"
        " as the peer gives credit for"
    )


@dataclass(frozen=True, slots=True)
class RpcOperation:
    """An operation. ``required_rights`` says what must be granted, from the arguments: on every
    queue, sink and subscription among them.
    """

    arguments: BulkJsonCodec
    result: BulkJsonCodec
    required_rights: Callable[..., Iterable[RequiredRight]]
    served_by: RpcTarget
    has_subscription: bool = False
    """Whether the second argument names one."""
    has_body: bool = False
    """Whether values come after the arguments."""

    def decode_arguments(self, head: Any) -> tuple[Any, ...]:
        """The arguments, checked. Raises WireError."""
        # A shape of several
        return _decode_shape(self.arguments, head)  # type: ignore[no-any-return]

    def decode_result(self, head: Any) -> Any:
        """The result, checked. Raises WireError."""
        return _decode_shape(self.result, head)


def _decode_shape(shape: BulkJsonCodec, head: Any) -> Any:
    try:
        return shape.decode(head)
    except (ValueError, RecursionError) as error:
        raise make_wire_error("arguments or a result of another form", str(error)) from None


SINK_BATCH_CODECS = (TEXT, WHOLE_NUMBER)
OPERATIONS: dict[str, RpcOperation] = {
    "hello": RpcOperation(
        tuple_of(WHOLE_NUMBER, TEXT),
        record_of(ServerHello, WHOLE_NUMBER, FLAG, WHOLE_NUMBER),
        rights_on_any_queue(VERBS),
        RpcTarget.SESSION,
    ),
    "discover": RpcOperation(tuple_of(), NAMES, rights_on_any_queue(BROWSE_VERBS), RpcTarget.PEER),
    "attach": RpcOperation(
        tuple_of(NAMES, QUEUE_CREATION_CODEC),
        map_of(ATTACH_RESULT_CODEC),
        rights_on_queues(VERBS),
        RpcTarget.PEER,
    ),
    "states": RpcOperation(
        tuple_of(map_of(WHOLE_NUMBER)),
        map_of(QUEUE_STATE_CODEC),
        rights_on_queues(BROWSE_VERBS),
        RpcTarget.STORE,
    ),
    "spans": RpcOperation(
        tuple_of(map_of(tuple_of(WHOLE_NUMBER, WHOLE_NUMBER))),
        map_of(ORIGIN_STATE_CODEC),
        rights_on_queues(BROWSE_VERBS),
        RpcTarget.STORE,
    ),
    "positions": RpcOperation(
        tuple_of(NAMES),
        map_of(tuple_of(TEXT, map_of(tuple_of(WHOLE_NUMBER, FLAG)))),
        rights_on_queues(CONSUME_VERBS),
        RpcTarget.PEER,
    ),
    "marks": RpcOperation(
        tuple_of(map_of(WHOLE_NUMBER)),
        map_of(TEXT),
        rights_on_queues(BROWSE_VERBS),
        RpcTarget.STORE,
    ),
    "counters": RpcOperation(
        tuple_of(NAMES),
        list_of(or_null(BASE64_CODEC)),
        rights_on_queues(BROWSE_VERBS),
        RpcTarget.STORE,
    ),
    "note_times": RpcOperation(
        tuple_of(NAMES), map_of(WHOLE_NUMBER), rights_on_queues(BROWSE_VERBS), RpcTarget.STORE
    ),
    "find_times": RpcOperation(
        tuple_of(map_of(WHOLE_NUMBER)),
        map_of(TIME_LOOKUP_RESULT_CODEC),
        rights_on_queues(BROWSE_VERBS),
        RpcTarget.STORE,
    ),
    "times": RpcOperation(
        tuple_of(map_of(tuple_of(WHOLE_NUMBER, WHOLE_NUMBER))),
        map_of(TIMES_OF_IDS_CODEC),
        rights_on_queues(BROWSE_VERBS),
        RpcTarget.STORE,
    ),
    "ages": RpcOperation(
        tuple_of(map_of(WHOLE_NUMBER)),
        map_of(WHOLE_NUMBER),
        rights_on_queues(BROWSE_VERBS),
        RpcTarget.STORE,
    ),
    "ack": RpcOperation(
        tuple_of(map_of(POSITION_CODEC), TEXT),
        map_of(ACK_RESULT_CODEC),
        rights_to_consume,
        RpcTarget.PEER,
        has_subscription=True,
    ),
    "subscribe": RpcOperation(
        tuple_of(map_of(START_CODEC), TEXT),
        map_of(WHOLE_NUMBER),
        rights_to_consume,
        RpcTarget.PEER,
        has_subscription=True,
    ),
    "subscriptions": RpcOperation(
        tuple_of(NAMES),
        map_of(map_of(WHOLE_NUMBER)),
        rights_on_queues(CONSUME_VERBS),
        RpcTarget.PEER,
    ),
    "lease": RpcOperation(
        tuple_of(NAMES, TEXT, TEXT, map_of(TEXT)),
        map_of(TEXT),
        rights_to_consume,
        RpcTarget.PEER,
        has_subscription=True,
    ),
    "holders": RpcOperation(
        tuple_of(NAMES, TEXT),
        map_of(TEXT),
        rights_to_consume,
        RpcTarget.PEER,
        has_subscription=True,
    ),
    "keep_alive": RpcOperation(
        tuple_of(NAMES, TEXT, TEXT),
        map_of(WHOLE_NUMBER),
        rights_to_keep_alive,
        RpcTarget.PEER,
        has_subscription=True,
    ),
    "traces": RpcOperation(
        tuple_of(TEXT), REMOVAL_TRACES_CODEC, rights_on_queues(BROWSE_VERBS), RpcTarget.STORE
    ),
    "bytes_until": RpcOperation(
        tuple_of(TEXT, WHOLE_NUMBER, WHOLE_NUMBER, WHOLE_NUMBER),
        tuple_of(WHOLE_NUMBER, WHOLE_NUMBER),
        rights_on_queues(BROWSE_VERBS),
        RpcTarget.STORE,
    ),
    "read": RpcOperation(
        tuple_of(RANGE_CODEC, FLAG, WHOLE_NUMBER),
        NULL_CODEC,
        rights_on_queues(BROWSE_VERBS),
        RpcTarget.CONCURRENT,
    ),
    "read_many": RpcOperation(
        tuple_of(list_of(RANGE_CODEC), FLAG, WHOLE_NUMBER),
        NULL_CODEC,
        rights_on_queues(BROWSE_VERBS),
        RpcTarget.CONCURRENT,
    ),
    "read_with_spans": RpcOperation(
        tuple_of(list_of(RANGE_CODEC), WHOLE_NUMBER),
        map_of(ORIGIN_STATE_CODEC),
        rights_on_queues(BROWSE_VERBS),
        RpcTarget.CONCURRENT,
    ),
    "listen": RpcOperation(
        tuple_of(NAMES), NULL_CODEC, rights_on_queues(BROWSE_VERBS), RpcTarget.SESSION
    ),
    "wait": RpcOperation(
        tuple_of(WHOLE_NUMBER), FLAG, rights_on_any_queue(BROWSE_VERBS), RpcTarget.CONCURRENT
    ),
    "begin": RpcOperation(
        tuple_of(TEXT, TEXT, NAMES), SINK_RUN_CODEC, rights_to_begin, RpcTarget.PEER
    ),
    "renew": RpcOperation(
        tuple_of(SINK_RUN_CODEC), NULL_CODEC, lambda run: rights_on_sink(run.sink), RpcTarget.PEER
    ),
    "stage": RpcOperation(
        tuple_of(TEXT, TEXT, WHOLE_NUMBER, SINK_RUN_CODEC),
        tuple_of(WHOLE_NUMBER, WHOLE_NUMBER),
        rights_to_stage,
        RpcTarget.PEER,
        has_body=True,
    ),
    "push": RpcOperation(
        tuple_of(TEXT),
        tuple_of(WHOLE_NUMBER, WHOLE_NUMBER),
        rights_on_queues(PUSH_VERBS),
        RpcTarget.STORE,
        has_body=True,
    ),
    "push_from": RpcOperation(
        tuple_of(TEXT, TEXT, list_of(WHOLE_NUMBER)),
        tuple_of(WHOLE_NUMBER, WHOLE_NUMBER),
        rights_on_queues(PUSH_VERBS),
        RpcTarget.PEER,
        has_body=True,
    ),
    "partitions": RpcOperation(tuple_of(TEXT), WHOLE_NUMBER, rights_on_topic, RpcTarget.STORE),
    "take_commands": RpcOperation(
        tuple_of(TEXT), NULL_CODEC, rights_to_take_commands, RpcTarget.STORE
    ),
    "event_queues": RpcOperation(
        tuple_of(list_of(NAMES)), list_of(NAMES), rights_on_any_queue(PUSH_VERBS), RpcTarget.PEER
    ),
    "subscribe_events": RpcOperation(
        tuple_of(TEXT, NAMES, FLAG), NULL_CODEC, rights_to_subscribe_events, RpcTarget.PEER
    ),
    "record": RpcOperation(
        tuple_of(*SINK_BATCH_CODECS, list_of(STAGED_LIST_CODEC), TEXT, TEXT, WHOLE_NUMBER),
        list_of(STAGED_LIST_CODEC),
        rights_on_sink,
        RpcTarget.PEER,
    ),
    "commit": RpcOperation(
        tuple_of(TEXT, *SINK_BATCH_CODECS, list_of(STAGED_LIST_CODEC)),
        or_null(PARTIAL_COMMIT_CODEC),
        rights_to_commit,
        RpcTarget.PEER,
    ),
    "recorded": RpcOperation(
        tuple_of(*SINK_BATCH_CODECS), list_of(STAGED_LIST_CODEC), rights_on_sink, RpcTarget.PEER
    ),
    "discard": RpcOperation(
        tuple_of(list_of(STAGED_LIST_CODEC)), NULL_CODEC, rights_on_lists, RpcTarget.PEER
    ),
    "forget": RpcOperation(
        tuple_of(TEXT, list_of(STAGED_LIST_CODEC)), NULL_CODEC, rights_on_sink, RpcTarget.PEER
    ),
    "ends": RpcOperation(
        tuple_of(NAMES), map_of(WHOLE_NUMBER), rights_on_queues(ADMIN_VERBS), RpcTarget.STORE
    ),
    "trim": RpcOperation(
        tuple_of(map_of(WHOLE_NUMBER)), NULL_CODEC, rights_on_queues(ADMIN_VERBS), RpcTarget.STORE
    ),
}
"""Every method of ReadStore and WriteStore that ask the other side (``truncate`` in two steps), and
what notifies of pushes: ``listen``, ``wait``.
"""


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
