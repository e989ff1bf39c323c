"""Values to JSON text and back, as one field of a persisted object is stored (protocol 4.2),
checked against a type where there is one.

Known types: str, int, float, bool, None, Any, list, dict with text keys, tuple, Literal, Enum,
dataclasses, and unions of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from busmq_spark.errors import ConfigError, MessageRefused
from busmq_spark.errors.foreign import class_name, message_text
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
