"""Text of exceptions and objects of other people's code: bounded, on one line, valid UTF-8.

Making it never raises.

A class may override whatever is asked of its exceptions, so attributes are read with the
descriptors of Python's own classes.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from typing import Any, TypeAlias

from busmq_spark.errors.base import BusError

MAX_ERROR_CHARACTERS = 2000
"""Longest text of an error."""
MAX_STACK_CHARACTERS = 20_000
"""Longest stack trace that is sent to a peer."""
MAX_LOGGED_CHARACTERS = 100_000
"""Longest stack trace of a log."""
MAX_LISTED = 5
"""Most causes, notes and members of a group that are named."""
_BASE_ATTRIBUTES = BaseException.__dict__
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_CREDENTIALS = (
    (re.compile(r"(?<=://)[^\s/@]*(?:/[^\s/@]*)?@"), "***@"),
    (
        re.compile(
            r"(?i)\b(\w*(?:passw(?:or)?d|secret|token|api_?key))(['\"]?\s*(?:=|['\"]\s*:)\s*)(['\"]?)[^\s'\"&,;]+"
        ),
        r"\1\2\3***",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), r"\1 ***"),
)
ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, Any]


def plain_text(value: object, most: int = MAX_ERROR_CHARACTERS) -> str:
    """Return the text of any object on one line of at most ``most`` characters.

    Credentials are replaced by ``***``. An object whose ``str()`` fails is named by its class. The
    text of a BusError stays as its maker wrote it.
    """
    try:
        found = str.__getitem__(str(value), slice(4 * most))  # a subclass of str becomes a str here
    except BaseException as failure:  # noqa: BLE001  # it is the code of others
        found = f"<a {class_name(value)}, whose str() raises {class_name(failure)}>"
    text = _CONTROL.sub(" ", found).encode("utf-8", "replace").decode()
    if not issubclass(type(value), BusError):
        for pattern, mask in _CREDENTIALS:
            text = pattern.sub(mask, text)
    return text[:most]


def class_name(value: object) -> str:
    """Return the name of the class of an object, whatever its metaclass says."""
    name = type.__dict__["__name__"].__get__(type(value))
    return _CONTROL.sub(" ", name[:200]).encode("utf-8", "replace").decode()


def message_text(error: BaseException) -> str:
    """Return the message of an exception, or the name of its class where it has none."""
    return plain_text(error).strip() or class_name(error)


def error_text(error: object) -> str:
    """Return the text of an error for a dead letter, an outcome or a log.

    It has the class, message, notes, members and causes of the error.

    A BusError is its own text, and its causes stay out: its message names them. An object that is
    no exception is its plain text.
    """
    if not issubclass(type(error), BaseException):
        return plain_text(error)
    assert isinstance(error, BaseException)
    parts = [_one_text(each) for each in _chain(error)]
    return "; caused by ".join(parts)[:MAX_ERROR_CHARACTERS]


def code_of(error: BaseException) -> str | int | None:
    """Return the attribute ``code`` of an exception where it is a text or a number."""
    found = _attribute(error, "code")
    if type(found) is int:
        return found if abs(found) < 2**53 else None
    return plain_text(found, 200) if issubclass(type(found), str) else None


def stack_text(error: BaseException) -> str:
    """Return the stack trace of an exception, as for a peer that may see it."""
    kind, found, trace = exc_info(error)
    text = "".join(traceback.format_exception(kind, found, trace))
    return text[-MAX_STACK_CHARACTERS:]


def exc_info(error: BaseException) -> ExcInfo:
    """Return the ``exc_info`` of an exception for ``logging``.

    An exception that no log can print is replaced by one with its text and traceback.
    """
    trace = _BASE_ATTRIBUTES["__traceback__"].__get__(error)
    try:
        text = "".join(traceback.format_exception(type(error), error, trace))
        printable = text.isascii() or bool(text.encode())
    except BaseException:  # noqa: BLE001  # it is the code of others
        text, printable = "", False
    if not printable or len(text) > MAX_LOGGED_CHARACTERS:
        error = UnprintableError(error_text(error))
    return type(error), error, trace


class UnprintableError(Exception):
    """Stands in a log for an exception that Python cannot print."""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and its causes, each once."""
    found: BaseException | None = error
    seen: set[int] = set()
    while found is not None and id(found) not in seen and len(seen) < MAX_LISTED:
        yield found
        seen.add(id(found))
        if issubclass(type(found), BusError):
            return
        cause = _BASE_ATTRIBUTES["__cause__"].__get__(found)
        hidden = _BASE_ATTRIBUTES["__suppress_context__"].__get__(found)
        found = (
            cause if cause is not None or hidden else _BASE_ATTRIBUTES["__context__"].__get__(found)
        )


def _one_text(error: BaseException, depth: int = 0) -> str:
    text = plain_text(error).strip()
    if not issubclass(type(error), BusError):
        text = f"{class_name(error)}: {text}" if text else class_name(error)
    notes = _attribute(error, "__notes__")
    if type(notes) is list:
        text = " ".join([text, *(f"({plain_text(note)})" for note in notes[:MAX_LISTED])])
    if issubclass(type(error), BaseExceptionGroup) and depth < MAX_LISTED:
        members = BaseExceptionGroup.__dict__["exceptions"].__get__(error)
        text += f" [{'; '.join(_one_text(each, depth + 1) for each in members[:MAX_LISTED])}]"
    return text[:MAX_ERROR_CHARACTERS]


def _attribute(error: BaseException, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except BaseException:  # noqa: BLE001  # it is the code of others
        return None
