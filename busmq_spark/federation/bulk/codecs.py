"""The JSON of values in ``busmq.bulk.v1``; a codec follows from the type of a value.

Records are lists in the order of their fields. Decoding checks every type. Nothing from the wire
picks a class or a method by name.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from busmq_spark.federation.bulk.frames import MAX_WHOLE_NUMBER
from busmq_spark.store.protocol import LossCauseEvidence

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
