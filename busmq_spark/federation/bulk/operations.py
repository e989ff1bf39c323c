"""The operations of ``busmq.bulk.v1`` and the JSON of their values.

The JSON of values in ``busmq.bulk.v1``; a codec follows from the type of a value.

Records are lists in the order of their fields. Decoding checks every type. Nothing from the wire
picks a class or a method by name.

The operations of ``busmq.bulk.v1``: one declaration for each.

A declaration names the method whose signature the operation has, the rights that it needs, the keys
that it touches and its server side. The JSON of arguments and result follows from the signature,
and the table of rights in ``docs/federation.md`` from the declaration. A client calls an operation
by its name, and the server side has a method of that name.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from types import NoneType
from typing import Any, Protocol, get_args, get_origin, get_type_hints

from busmq_spark.federation.bulk.frames import MAX_WHOLE_NUMBER, make_wire_error
from busmq_spark.federation.gate.rights import EVENT_KIND, VERBS, RequiredRight, Verbs
from busmq_spark.groups.topic import partition_queue
from busmq_spark.queue.message import CHUNK_MESSAGES, Range
from busmq_spark.store.protocol import (
    LossCauseEvidence,
    MirrorOriginReadStore,
    ReadStore,
    WriteStore,
)
from busmq_spark.writing.mirror import OriginQueueState
from busmq_spark.writing.sink import StagedList
from busmq_spark.writing.sink_runs import SinkRun

MAX_TEXT_LENGTH = 4096
"""Longest name, token or key."""
_FIELDS_ON_THE_WIRE = {LossCauseEvidence: ("unacked", "listeners", "empty")}
"""The fields of a record that has others, too; they keep their defaults."""


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


def or_null(shape: BulkJsonCodec) -> BulkJsonCodec:
    """Null, or the shape."""
    return BulkJsonCodec(
        lambda v: None if v is None else shape.encode(v),
        lambda v: None if v is None else shape.decode(v),
    )


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


def codec_of_fields(
    make: Callable[..., Any], fields: Callable[[Any], Sequence[Any]], *shapes: BulkJsonCodec
) -> BulkJsonCodec:
    """A record, as the list of its fields; ``make`` is called with the decoded fields."""

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


_CODECS: dict[object, BulkJsonCodec] = {
    str: BulkJsonCodec(_return_unchanged, _decode_text),
    int: BulkJsonCodec(_return_unchanged, _decode_whole_number),
    bool: BulkJsonCodec(_return_unchanged, _decode_flag),
    bytes: BulkJsonCodec(lambda value: base64.b64encode(value).decode(), _decode_base64),
    str | int: BulkJsonCodec(_return_unchanged, _decode_subscription_start),
    NoneType: or_null(BulkJsonCodec(_return_unchanged, lambda _: _raise_value_error("null"))),
}


def codec_of(kind: Any) -> BulkJsonCodec:
    """Return the codec of a type: a plain one, a sequence, mapping or tuple of others, or a class
    with fields.
    """
    if kind in _CODECS:
        return _CODECS[kind]
    origin, parts = get_origin(kind), get_args(kind)
    if NoneType in parts:
        [other] = {*parts} - {NoneType}
        return or_null(codec_of(other))
    if origin is Mapping:
        return map_of(codec_of(parts[1]))
    if origin is Sequence or parts[1:] == (...,):
        return list_of(codec_of(parts[0]))
    if origin is tuple:
        return tuple_of(*map(codec_of, parts))
    kinds = get_type_hints(kind)
    names = _FIELDS_ON_THE_WIRE.get(kind, tuple(kinds))
    return codec_of_fields(kind, attrgetter(*names), *(codec_of(kinds[name]) for name in names))


BROWSE_VERBS: Verbs = ("browse",)
CONSUME_VERBS: Verbs = ("consume",)
PUSH_VERBS: Verbs = ("push",)
CREATE_VERBS: Verbs = ("create",)
ADMIN_VERBS: Verbs = ("admin",)


MAX_EVENT_KEYS_PER_CALL = 10_000
"""Keys of all events together in one call of ``event_queues``."""


def rights_on_any_queue(verbs: Verbs) -> Callable[..., Iterable[RequiredRight]]:
    """Require the verbs on any queue, for an operation that names none."""
    return lambda *_: [RequiredRight(verbs, "queue", None)]


def rights_on_queues(verbs: Verbs) -> Callable[..., list[RequiredRight]]:
    """The verbs on the queues in the first argument: names or ranges, one or several."""

    def required_rights(first: Any, *_: Any) -> list[RequiredRight]:
        found = [first] if isinstance(first, str | Range) else first
        names = dict.fromkeys(each.queue if isinstance(each, Range) else each for each in found)
        return [RequiredRight(verbs, "queue", name) for name in names] or [
            RequiredRight(verbs, "queue", None)
        ]

    return required_rights


BROWSE, CONSUME, PUSH, ADMIN, ANY_VERB = (
    rights_on_queues(verbs)
    for verbs in (BROWSE_VERBS, CONSUME_VERBS, PUSH_VERBS, ADMIN_VERBS, VERBS)
)
BROWSE_ANY, PUSH_ANY, ANY_VERB_ON_ANY = (
    rights_on_any_queue(verbs) for verbs in (BROWSE_VERBS, PUSH_VERBS, VERBS)
)


def rights_to_consume(queues: Any, name: str, *_: Any) -> list[RequiredRight]:
    """To consume the queues, and as this subscription, if it is one."""
    return [
        *CONSUME(queues),
        *([RequiredRight(CONSUME_VERBS, "subscription", name)] if name else []),
    ]


def rights_to_keep_alive(queues: Any, subscription: str, token: str) -> Iterable[RequiredRight]:
    """Without a token no lease is renewed: who only looks keeps its queues, too."""
    return rights_to_consume(queues, subscription) if token else BROWSE(queues)


def rights_on_topic(topic: str) -> list[RequiredRight]:
    """To push to its first partition."""
    return [RequiredRight(PUSH_VERBS, "queue", partition_queue(topic, 0))]


def rights_to_take_commands(queue: str) -> list[RequiredRight]:
    """From then on the queue takes one group only: that is a setting of it, as those that are given
    where it is made.
    """
    return [RequiredRight(PUSH_VERBS, "queue", queue), RequiredRight(CREATE_VERBS, "queue", queue)]


def rights_to_subscribe_events(
    queue: str, patterns: Sequence[str], end: bool
) -> list[RequiredRight]:
    """To push to the queue and, but to end rows of one's own, to take the events of each
    pattern.
    """
    if len(patterns) > CHUNK_MESSAGES:
        raise make_wire_error(f"{len(patterns)} patterns", f"at most {CHUNK_MESSAGES}")
    taken = [] if end else dict.fromkeys(patterns)
    return [
        RequiredRight(PUSH_VERBS, "queue", queue),
        *(RequiredRight(VERBS, EVENT_KIND, pattern) for pattern in taken),
    ]


def rights_on_lists(lists: Iterable[StagedList]) -> list[RequiredRight]:
    return PUSH(dict.fromkeys(part.queue for part in lists))


def rights_on_sink(name: str, *rest: Any) -> list[RequiredRight]:
    """To have the sink, and to push to the queues of the staged lists, if there are any."""
    lists = next((part for part in rest if isinstance(part, tuple)), ())
    return [RequiredRight(PUSH_VERBS, "sink", name), *(rights_on_lists(lists) if lists else [])]


def rights_to_ask_sink(name: str, queues: Any) -> list[RequiredRight]:
    return [*rights_on_sink(name), *(PUSH(queues) if queues else [])]


def rights_to_begin(name: str, _: str, queues: Any) -> list[RequiredRight]:
    return [*rights_on_sink(name), *PUSH(queues)]


def rights_to_stage(queue: str, _: str, __: int, run: SinkRun) -> list[RequiredRight]:
    """To push to the queue, and to have the sink, if it is one that can be named."""
    return [
        RequiredRight(PUSH_VERBS, "queue", queue),
        *(rights_on_sink(run.sink) if run.sink else []),
    ]


def rights_to_commit(queue: str, sink: str, _: int, lists: Any) -> list[RequiredRight]:
    return [RequiredRight(PUSH_VERBS, "queue", queue), *rights_on_sink(sink, lists)]


def rights_to_renew(run: SinkRun) -> list[RequiredRight]:
    return rights_on_sink(run.sink)


@dataclass(frozen=True, slots=True)
class ServerHello:
    """A server's first message to a client: how it spells keys, and how long a message to it may
    be.
    """

    version: int
    cluster: bool
    message_bytes: int


class BulkWire(Protocol):
    """The signatures of operations that no protocol of a store has, or not in this form."""

    def hello(self, version: int, client: str) -> ServerHello: ...
    def discover(self) -> Sequence[str]: ...
    def counters(self, queues: Sequence[str]) -> Sequence[bytes | None]: ...
    def read(self, part: Range, fail_on_data_loss: bool, credit: int) -> None: ...
    def read_many(self, parts: Sequence[Range], fail_on_data_loss: bool, credit: int) -> None: ...
    def read_with_spans(
        self, parts: Sequence[Range], credit: int
    ) -> Mapping[str, OriginQueueState]: ...
    def listen(self, queues: Sequence[str]) -> None:
        """From now on ``wait`` waits for pushes to these queues."""
        ...

    def wait(self, timeout_ms: int) -> bool: ...
    def stage(
        self, queue: str, key: str, before: int, run: SinkRun, values: Sequence[bytes]
    ) -> tuple[int, int]: ...
    def push(self, queue: str, values: Sequence[bytes]) -> tuple[int, int]: ...
    def push_from(
        self, queue: str, sender: str, sequences: Sequence[int], values: Sequence[bytes]
    ) -> tuple[int, int]: ...
    def partitions(self, topic: str) -> int: ...
    def take_commands(self, queue: str) -> None: ...
    def event_queues(self, events: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]: ...
    def subscribe_events(self, queue: str, patterns: Sequence[str], end: bool) -> None: ...
    def record(
        self, sink: str, batch: int, staged: Sequence[StagedList], query: str, span: str, epoch: int
    ) -> tuple[StagedList, ...]: ...
    def ends(self, queues: Sequence[str]) -> Mapping[str, int]: ...
    def trim(self, ids: Mapping[str, int]) -> None: ...


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

    name: str
    arguments: BulkJsonCodec
    result: BulkJsonCodec
    required_rights: Callable[..., Iterable[RequiredRight]]
    keys: tuple[str, ...]
    """The keys that it touches in Redis: keys of the queues that it names, and among these
    ``lease:<subscription>``, ``stage:<list>`` and ``stages:<sink>``. ``sink`` and ``sink-queues``
    are ``bus:sink:…`` and ``bus:sink-queues:…`` of the peer's own sinks, ``topic`` is
    ``bus:topic:<topic>``, and ``subscriptions`` is ``bus:subscriptions``.
    """
    served_by: RpcTarget
    has_subscription: bool
    """Whether the second argument names one."""
    has_body: bool
    """Whether values come after the arguments."""

    @classmethod
    def of(
        cls,
        method: Callable[..., Any],
        required_rights: Callable[..., Iterable[RequiredRight]],
        keys: str,
        served_by: RpcTarget = RpcTarget.STORE,
    ) -> RpcOperation:
        """Return the operation with the name and the signature of a method; its parameter
        ``values`` is the body of a call.
        """
        kinds = get_type_hints(method)
        result = codec_of(kinds.pop("return"))
        has_body = kinds.pop("values", None) is not None
        return cls(
            method.__name__,
            tuple_of(*map(codec_of, kinds.values())),
            result,
            required_rights,
            tuple(keys.split()),
            served_by,
            "subscription" in kinds,
            has_body,
        )

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


OPERATIONS = {
    operation.name: operation
    for operation in (
        RpcOperation.of(BulkWire.hello, ANY_VERB_ON_ANY, "", RpcTarget.SESSION),
        RpcOperation.of(BulkWire.discover, BROWSE_ANY, "", RpcTarget.PEER),
        RpcOperation.of(
            ReadStore.attach,
            ANY_VERB,
            "metadata messages msgid toack acks sinks clock bytes",
            RpcTarget.PEER,
        ),
        RpcOperation.of(ReadStore.states, BROWSE, "metadata messages msgid"),
        RpcOperation.of(MirrorOriginReadStore.spans, BROWSE, "metadata messages msgid"),
        RpcOperation.of(
            MirrorOriginReadStore.positions, CONSUME, "metadata acks owners", RpcTarget.PEER
        ),
        RpcOperation.of(ReadStore.marks, BROWSE, "messages"),
        RpcOperation.of(BulkWire.counters, BROWSE, "msgid"),
        RpcOperation.of(ReadStore.note_times, BROWSE, "metadata messages msgid acks clock bytes"),
        RpcOperation.of(ReadStore.find_times, BROWSE, "metadata messages msgid acks clock bytes"),
        RpcOperation.of(ReadStore.times, BROWSE, "metadata clock"),
        RpcOperation.of(ReadStore.ages, BROWSE, "metadata clock"),
        RpcOperation.of(
            ReadStore.ack,
            rights_to_consume,
            "metadata messages msgid acks clock bytes owners lease",
            RpcTarget.PEER,
        ),
        RpcOperation.of(
            ReadStore.subscribe,
            rights_to_consume,
            "metadata messages msgid acks owners lease",
            RpcTarget.PEER,
        ),
        RpcOperation.of(ReadStore.subscriptions, CONSUME, "metadata acks owners", RpcTarget.PEER),
        RpcOperation.of(
            ReadStore.lease,
            rights_to_consume,
            "metadata messages msgid toack acks owners lease readers",
            RpcTarget.PEER,
        ),
        RpcOperation.of(
            ReadStore.holders, rights_to_consume, "metadata acks owners lease", RpcTarget.PEER
        ),
        RpcOperation.of(
            ReadStore.keep_alive,
            rights_to_keep_alive,
            "metadata messages msgid toack acks sinks clock bytes owners lease readers",
            RpcTarget.PEER,
        ),
        RpcOperation.of(ReadStore.traces, BROWSE, "metadata toack available"),
        RpcOperation.of(ReadStore.bytes_until, BROWSE, "metadata messages"),
        RpcOperation.of(BulkWire.read, BROWSE, "metadata messages", RpcTarget.CONCURRENT),
        RpcOperation.of(BulkWire.read_many, BROWSE, "metadata messages", RpcTarget.CONCURRENT),
        RpcOperation.of(
            BulkWire.read_with_spans, BROWSE, "metadata messages msgid", RpcTarget.CONCURRENT
        ),
        RpcOperation.of(BulkWire.listen, BROWSE, "available", RpcTarget.SESSION),
        RpcOperation.of(BulkWire.wait, BROWSE_ANY, "", RpcTarget.CONCURRENT),
        RpcOperation.of(
            WriteStore.begin, rights_to_begin, "stages sink sink-queues", RpcTarget.PEER
        ),
        RpcOperation.of(
            WriteStore.renew, rights_to_renew, "stages sink sink-queues", RpcTarget.PEER
        ),
        RpcOperation.of(BulkWire.stage, rights_to_stage, "stage stages", RpcTarget.PEER),
        RpcOperation.of(
            BulkWire.push, PUSH, "metadata messages msgid toack acks clock bytes available"
        ),
        RpcOperation.of(
            BulkWire.push_from,
            PUSH,
            "metadata messages msgid toack acks clock bytes senders available",
            RpcTarget.PEER,
        ),
        RpcOperation.of(BulkWire.partitions, rights_on_topic, "topic"),
        RpcOperation.of(BulkWire.take_commands, rights_to_take_commands, "metadata acks"),
        RpcOperation.of(
            BulkWire.event_queues, PUSH_ANY, "subscriptions metadata messages msgid", RpcTarget.PEER
        ),
        RpcOperation.of(
            BulkWire.subscribe_events,
            rights_to_subscribe_events,
            "subscriptions metadata messages msgid toack acks sinks clock bytes",
            RpcTarget.PEER,
        ),
        RpcOperation.of(
            BulkWire.record, rights_on_sink, "stage stages sink sink-queues", RpcTarget.PEER
        ),
        RpcOperation.of(
            WriteStore.commit,
            rights_to_commit,
            "metadata messages msgid toack acks clock bytes sinks stage stages sink available",
            RpcTarget.PEER,
        ),
        RpcOperation.of(WriteStore.recorded, rights_on_sink, "sink", RpcTarget.PEER),
        RpcOperation.of(WriteStore.sink_state, rights_to_ask_sink, "sink sinks", RpcTarget.PEER),
        RpcOperation.of(WriteStore.discard, rights_on_lists, "stage stages", RpcTarget.PEER),
        RpcOperation.of(
            WriteStore.forget, rights_on_sink, "sinks stages sink sink-queues", RpcTarget.PEER
        ),
        RpcOperation.of(BulkWire.ends, ADMIN, "messages"),
        RpcOperation.of(BulkWire.trim, ADMIN, "messages"),
    )
}
"""Every method of ReadStore and WriteStore that ask the other side (``truncate`` in two steps), and
what notifies of pushes: ``listen``, ``wait``.
"""
