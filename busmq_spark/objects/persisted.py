"""A persisted object: its stored fields, their JSON, and the commands for them (protocol 4.2).

Values to JSON text and back, as one field of a persisted object is stored (protocol 4.2),
checked against a type where there is one.

Known types: str, int, float, bool, None, Any, list, dict with text keys, tuple, Literal, Enum,
dataclasses, and unions of them.

A persisted object: which of its fields are stored, which have changed, and the commands for them
(protocol 4.2).

Rule 1. A field is written only when it was assigned, or when its value is another than the one last
        seen in Redis, which also finds a list that was appended to. A value from Redis never
        replaces such a change.
Rule 2. A save notes its changes when it sends them, so a change made meanwhile is still a change
        afterwards (protocol Q32).
Rule 3. A field that is no JSON, or not of the field's type, is left as it is in Redis and listed
        apart; it is replaced only by an assignment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from busmq_spark.errors import ConfigError, MessageRefused
from busmq_spark.errors.foreign import class_name, message_text
from busmq_spark.queue.command_generators import Flow, command, script
from busmq_spark.queue.message import refuse_constant

_PLAIN_TYPES = (str, int, float, bool, NoneType)


class PersistedTypeMismatch(ValueError):
    """A text that is no JSON, or a value that is not of the type; says what was expected."""


def to_text(value: object, hint: Any = Any) -> bytes:
    """Compact JSON, as npm writes it. Raises MessageRefused for a value of another type, and for
    what JSON cannot express.
    """
    try:
        plain = _convert(value, hint, reading=False)
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except Exception as error:  # noqa: BLE001  # the value may be a mapping of another's
        raise MessageRefused(
            reason=f"a {class_name(value)} does not fit ({message_text(error)})"
        ) from None
    return text.encode(
        "utf-8", "backslashreplace"
    )  # half a surrogate pair becomes \udXXX, as JSON.stringify writes it


def from_text(text: bytes, hint: Any = Any) -> Any:
    """The value of a stored field. Raises PersistedTypeMismatch."""
    try:
        value = json.loads(text.decode(), parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise PersistedTypeMismatch("JSON") from None
    return _convert(value, hint, reading=True)


def hints_of(shape: type[Any]) -> dict[str, Any]:
    """Field → type of a dataclass. Raises ConfigError for a type that JSON cannot express, before
    anything is stored.
    """
    try:
        found = _hints(shape)
        odd = {
            name: part
            for name, hint in found.items()
            if (part := _unknown_part(hint, {shape})) is not None
        }
    except NameError as error:
        raise ConfigError(
            reason=(
                f"the types of {shape.__name__} cannot be looked up ({error}); define it and its"
                " types in a module"
            )
        ) from None
    for name, part in odd.items():
        raise ConfigError(
            reason=(
                f"field {name!r} of {shape.__name__} has the type {part}; expected what JSON can"
                " express: str, int, float, bool, None, list, dict with text keys, tuple, Literal,"
                " Enum, a dataclass, or unions of them"
            )
        )
    return found


def _hints(shape: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(shape)
    return {field.name: hints[field.name] for field in fields(shape)}


def _unknown_part(hint: Any, seen: set[Any]) -> str | None:
    """The name of a part of the type that is not known, or None."""
    origin, args = get_origin(hint), get_args(hint)
    parts: list[Any] = []
    if (
        hint in (Any, object, None, *_PLAIN_TYPES, list, dict, tuple)
        or origin is Literal
        or _is_kind(hint, Enum)
        or hint in seen
    ):
        return None
    if is_dataclass(hint) and isinstance(hint, type):
        seen.add(hint)
        parts = list(_hints(hint).values())
    elif origin in (Union, UnionType, list, tuple):
        parts = [arg for arg in args if arg is not Ellipsis]
    elif origin is dict and args[0] is str:
        parts = [args[1]]
    else:
        return str(getattr(hint, "__name__", hint) if origin is None else hint)
    return next((odd for part in parts if (odd := _unknown_part(part, seen)) is not None), None)


def _is_kind(hint: Any, kind: type) -> bool:
    return isinstance(hint, type) and issubclass(hint, kind)


def _convert(value: Any, hint: Any, *, reading: bool) -> Any:
    """``value`` as the type has it (reading) or as JSON has it. Raises PersistedTypeMismatch."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return value
    if origin in (Union, UnionType):
        return _convert_to_first_fitting(value, args, hint, reading=reading)
    if hint is None or hint in _PLAIN_TYPES:
        return _convert_scalar(value, NoneType if hint is None else hint, reading=reading)
    if origin is Literal:
        return _convert_literal(value, args)
    if _is_kind(hint, Enum):
        return _convert_enum_member(value, hint, reading=reading)
    if is_dataclass(hint) and isinstance(hint, type):
        return _convert_record(value, hint, reading=reading)
    kind = origin or hint
    if kind is dict and isinstance(value, dict):
        inner = args[1] if args else Any
        return {
            _convert(key, str, reading=reading): _convert(each, inner, reading=reading)
            for key, each in value.items()
        }
    if kind is list and isinstance(value, list):
        return [_convert(each, args[0] if args else Any, reading=reading) for each in value]
    if kind is tuple and isinstance(value, list if reading else tuple):
        return _convert_items(value, args, reading=reading)
    raise PersistedTypeMismatch(f"expected {_type_name(hint)}, found {type(value).__name__}")


def _convert_scalar(value: Any, hint: type, *, reading: bool) -> Any:
    if type(value) is hint or (isinstance(value, hint) and not isinstance(value, bool | Enum)):
        return value
    if hint is float and type(value) is int:
        return float(value) if reading else value  # JavaScript writes 1.0 as 1
    if hint is int and type(value) is float and value.is_integer() and reading:
        return int(value)  # and 10**21 as 1e+21
    raise PersistedTypeMismatch(f"expected {_type_name(hint)}, found {type(value).__name__}")


def _convert_to_first_fitting(
    value: Any, args: tuple[Any, ...], hint: Any, *, reading: bool
) -> Any:
    """The member of a union whose type the value has; else the first that can take it."""
    for arg in sorted(args, key=lambda arg: arg is not type(value)):
        try:
            return _convert(value, arg, reading=reading)
        except PersistedTypeMismatch:
            continue
    raise PersistedTypeMismatch(f"expected {_type_name(hint)}, found {type(value).__name__}")


def _convert_literal(value: Any, args: tuple[Any, ...]) -> Any:
    for arg in args:
        if type(arg) is type(value) and arg == value:
            return value
    raise PersistedTypeMismatch(
        f"expected one of {', '.join(map(repr, args))}, found another {type(value).__name__}"
    )


def _convert_enum_member(value: Any, hint: type[Enum], *, reading: bool) -> Any:
    if not reading and isinstance(value, hint):
        return value.value
    if reading:
        for member in hint:
            if type(member.value) is type(value) and member.value == value:
                return member
    raise PersistedTypeMismatch(
        f"expected {_type_name(hint)}, found another {type(value).__name__}"
    )


def _convert_items(value: Any, args: tuple[Any, ...], *, reading: bool) -> Any:
    alike = not args or args[-1] is Ellipsis
    hints = [args[0] if args else Any] * len(value) if alike else list(args)
    if len(hints) != len(value):
        raise PersistedTypeMismatch(f"expected {len(hints)} values, found {len(value)}")
    made = [_convert(each, hint, reading=reading) for each, hint in zip(value, hints, strict=True)]
    return tuple(made) if reading else made


def _convert_record(value: Any, shape: type[Any], *, reading: bool) -> Any:
    """A dataclass inside a field. Reading ignores names it does not have, and takes defaults for
    those that are missing.
    """
    hints = _hints(shape)
    if not reading and type(value) is shape:
        return {
            field.name: _fit_field(field, getattr(value, field.name), hints, reading=False)
            for field in fields(shape)
        }
    if reading and isinstance(value, Mapping):
        missing = [
            field.name
            for field in fields(shape)
            if field.init and field.name not in value and not has_default(field)
        ]
        if not missing:
            given = {
                field.name: _fit_field(field, value[field.name], hints, reading=True)
                for field in fields(shape)
                if field.init and field.name in value
            }
            return shape(**given)
        raise PersistedTypeMismatch(f"expected {_type_name(shape)}, found no {missing[0]!r} in it")
    raise PersistedTypeMismatch(f"expected {_type_name(shape)}, found {type(value).__name__}")


def _fit_field(field: Field[Any], value: Any, hints: Mapping[str, Any], *, reading: bool) -> Any:
    try:
        return _convert(value, hints[field.name], reading=reading)
    except PersistedTypeMismatch as misfit:
        raise PersistedTypeMismatch(f"{field.name}: {misfit}") from None


def has_default(field: Field[Any]) -> bool:
    """Whether the dataclass can be made without this field."""
    return field.default is not MISSING or field.default_factory is not MISSING


def _type_name(hint: Any) -> str:
    return (
        "None"
        if hint is NoneType
        else str(getattr(hint, "__name__", hint) if get_origin(hint) is None else hint)
    )


MOST_FIELDS = 20_000
"""Most fields of an object that is loaded for a peer: Redis asks each for its length, which takes
it 5 ms.
"""


@dataclass(frozen=True, slots=True)
class PersistedFieldChanges:
    """The changes of one save: ``fields`` replace stored values, ``missing`` are stored only where
    no value is.
    """

    fields: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, bytes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.fields or self.missing)


class TrackedFields:
    """The values of one object, and what is known of their stored form. ``hints`` are the names it
    has, with types; None allows any name.
    """

    def __init__(
        self,
        values: MutableMapping[str, Any],
        hints: Mapping[str, Any] | None = None,
        *,
        unsaved: bool = False,
    ) -> None:
        """``unsaved``: the values given are to be stored by the next save, yet give way to what a
        load finds first.
        """
        self.values, self.hints = values, hints
        self.misfits: dict[str, str] = {}
        """Stored fields that could not be taken over, as text."""
        self._seen = {name: self._encode(name) for name in values}
        self._start = dict(self._seen)
        self._assigned: set[str] = set()
        self._unsaved = set(values) if unsaved else set()
        self._stored: set[str] = set()
        self._lost: set[str] = set()

    def assign(self, name: str, value: Any) -> None:
        """Set a field. Raises MessageRefused for a value that JSON cannot express."""
        self._encode_checked(name, value)
        self.values[name] = value
        self._assigned.add(name)

    @property
    def dirty(self) -> set[str]:
        """Names that a save would write over what is stored."""
        return {name for name in self.values if name in self._unsaved or self._is_changed(name)}

    def send(self) -> PersistedFieldChanges:
        """Begin a save. Raises MessageRefused, naming the field, when a value has become one that
        cannot be stored.
        """
        dirty = self.dirty
        sending = PersistedFieldChanges(
            {n: self._encode(n) for n in sorted(dirty)},
            {n: self._encode(n) for n in sorted(self._lost - dirty)},
        )
        self._assigned -= sending.fields.keys()
        return sending

    def on_save_failed(self, sending: PersistedFieldChanges) -> None:
        """Mark the changes of a save that failed, or whose result is unknown, as unsaved."""
        self._assigned |= sending.fields.keys()

    def on_saved(self, sending: PersistedFieldChanges, created: int) -> None:
        """The save came through and ``created`` of its fields were not there before."""
        if created > len(sending.fields.keys() - self._stored):
            self.on_gone()  # a field known to be stored was not: Redis has lost the object
        self._seen |= sending.fields | sending.missing
        self._stored |= sending.fields.keys() | sending.missing.keys()
        self._lost -= self._stored
        self._unsaved -= self._stored
        for name in sending.fields:
            self.misfits.pop(name, None)

    def on_gone(self) -> bool:
        """The object has vanished from Redis: the next save restores each of its fields that no
        other client has. Result: whether it had any.
        """
        had = bool(self._stored)
        self._lost |= self._stored
        self._stored.clear()
        return had

    @property
    def incomplete(self) -> bool:
        """Whether fields that once were stored are known to be missing in Redis."""
        return bool(self._lost)

    def load(self, stored: Mapping[str, bytes]) -> dict[str, str]:
        """Take over what Redis has; changes not saved yet stay. The result are new misfits: field →
        what was expected.
        """
        expected: dict[str, str] = {}
        misfits: dict[str, str] = {}
        for name, text in stored.items():
            if self.hints is not None and name not in self.hints:
                continue  # a field of another client: neither read nor written
            try:
                value = from_text(text, self._field_type(name))
            except PersistedTypeMismatch as misfit:
                misfits[name] = text.decode("utf-8", "replace")
                if self.misfits.get(name) != misfits[name]:
                    expected[name] = str(misfit)
            else:
                self._take_over_field(name, value)
        self.misfits = misfits
        for name in set(self._seen) - stored.keys():
            self._on_field_gone(name)
        self._stored = {name for name in stored if name in self._seen and name not in misfits}
        self._lost.clear()
        return expected

    def _take_over_field(self, name: str, value: Any) -> None:
        changed = name in self.values and self._is_changed(name)
        self._seen[name] = to_text(value, self._field_type(name))
        if not changed:
            self.values[name] = value
            self._unsaved.discard(name)

    def _on_field_gone(self, name: str) -> None:
        """The field is not stored any more: it has the value it began with, or none."""
        if self._is_changed(name) or name in self._unsaved:
            self._assigned |= {name} - self._unsaved
        elif name in self._start:
            self._seen[name] = self._start[name]
            self.values[name] = from_text(self._start[name], self._field_type(name))
        else:
            del self._seen[name], self.values[name]

    def _is_changed(self, name: str) -> bool:
        try:
            return name in self._assigned or self._seen.get(name) != self._encode(name)
        except MessageRefused:
            return True  # in place it has become something that the next save will refuse

    def _field_type(self, name: str) -> Any:
        return Any if self.hints is None else self.hints[name]

    def _encode(self, name: str) -> bytes:
        return self._encode_checked(name, self.values[name])

    def _encode_checked(self, name: str, value: Any) -> bytes:
        try:
            return to_text(value, self._field_type(name))
        except MessageRefused as refused:
            raise MessageRefused(reason=f"field {name!r}: {refused.details['reason']}") from None


def save(key: str, sending: PersistedFieldChanges, ttl_s: int) -> Flow[int]:
    """Write the fields and let the object live for ``ttl_s``. Return the number of ``fields`` that
    were not stored before.
    """
    first = [command("HSET", key, *_flatten(sending.fields.items()))] if sending.fields else []
    more = [command("HSETNX", key, name, text) for name, text in sending.missing.items()]
    replies = yield [*first, *more, command("EXPIRE", key, ttl_s)]
    return int(replies[0]) if first else 0


def load(key: str) -> Flow[dict[str, bytes]]:
    """Every field of the object; empty when it does not exist."""
    return _fields((yield command("HGETALL", key)))


def load_within(key: str, most: int) -> Flow[dict[str, bytes] | None]:
    """Load a hash of at most ``most`` bytes; return None when it has more, or more than MOST_FIELDS
    fields; then they are not loaded.
    """
    _, reply = yield script("load_within", (key,), (most, MOST_FIELDS))
    return None if reply is None else _fields(reply)


def _fields(reply: list[bytes]) -> dict[str, bytes]:
    return {
        name.decode("utf-8", "replace"): text
        for name, text in zip(reply[0::2], reply[1::2], strict=True)
    }


def touch(keys: Iterable[tuple[str, int]]) -> Flow[list[bool]]:
    """Let each object live for so many seconds from now on; whether it exists."""
    replies = yield [command("EXPIRE", key, ttl_s) for key, ttl_s in keys]
    return [bool(reply) for reply in replies]


def _flatten(pairs: Iterable[tuple[str, bytes]]) -> Iterable[str | bytes]:
    return (word for pair in pairs for word in pair)
