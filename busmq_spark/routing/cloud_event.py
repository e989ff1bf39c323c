"""Events and commands as messages: CloudEvents 1.0 in structured JSON (cloudevents.io), which every
language has a library for.

    event = Event(id="a1", source="/web", type="signup", data={"user": 7})
    assert Event.decode(event.encode()) == event

``data`` that is bytes travels as ``data_base64``, everything else as the JSON it is.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from busmq_spark.errors import MessageRefused
from busmq_spark.errors.foreign import message_text
from busmq_spark.queue.message import MAX_VALUE_BYTES, refuse_constant

SPEC_VERSION = "1.0"
DEFAULT_SOURCE = "/busmq"
"""Default."""
Extension: TypeAlias = str | int | bool
_REQUIRED_ATTRIBUTES = ("id", "source", "type")
_OPTIONAL_ATTRIBUTES = ("time", "subject", "datacontenttype", "dataschema")
_RESERVED_ATTRIBUTES = frozenset(
    ("specversion", *_REQUIRED_ATTRIBUTES, *_OPTIONAL_ATTRIBUTES, "data")
)
_EXTENSION_NAME = re.compile(r"[a-z0-9]+")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_SHOWN_BYTES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A CloudEvent. Raises MessageRefused for what is none."""

    id: str
    """With ``source`` it names the event for ever: both a second time are a repetition."""
    source: str
    """The sender: a URI, or a part of one, such as ``/web``."""
    type: str
    data: Any = None
    """bytes, or what JSON can express; the value is None without data."""
    time: str | None = None
    """RFC 3339: ``2026-05-01T12:00:00Z``."""
    subject: str | None = None
    datacontenttype: str | None = None
    """Media type of ``data``. Without one it is JSON."""
    dataschema: str | None = None
    extensions: Mapping[str, Extension] = field(default_factory=dict)
    """Further attributes: names of lower-case letters and digits; texts, booleans, or whole numbers
    of up to 32 bits.
    """

    def __post_init__(self) -> None:
        for name in (*_REQUIRED_ATTRIBUTES, *_OPTIONAL_ATTRIBUTES):
            value = getattr(self, name)
            if not (value is None and name in _OPTIONAL_ATTRIBUTES):
                _check_text(name, value)
        if self.time is not None:
            _check_time(self.time)
        for name, value in self.extensions.items():
            _check_extension(name, value)

    def encode(self) -> bytes:
        """Encode it as a message. Raises MessageRefused for data that JSON cannot express, and for
        more than 512 MB.
        """
        named = {
            name: value
            for name in (*_REQUIRED_ATTRIBUTES, *_OPTIONAL_ATTRIBUTES)
            if (value := getattr(self, name)) is not None
        }
        event = {"specversion": SPEC_VERSION, **named, **self.extensions}
        if isinstance(self.data, bytes):
            event["data_base64"] = base64.b64encode(self.data).decode("ascii")
        elif self.data is not None:
            event["data"] = self.data
        try:
            found = json.dumps(
                event, ensure_ascii=False, separators=(",", ":"), allow_nan=False
            ).encode()
        except Exception as error:  # noqa: BLE001  # the data may be a mapping of another's
            why = message_text(error)
            raise MessageRefused(
                reason=(
                    f"the data of event {self.id!r} is no data ({why}); expected bytes, or what"
                    " JSON can express"
                )
            ) from None
        if len(found) > MAX_VALUE_BYTES:
            raise MessageRefused(
                reason=(
                    f"event {self.id!r} has {len(found)} bytes; expected at most {MAX_VALUE_BYTES}"
                    " (512 MB)"
                )
            )
        return found

    @classmethod
    def decode(cls, value: bytes) -> Event:
        """The event that a message is. Raises MessageRefused for a message that is none."""
        try:
            found = json.loads(value.decode(), parse_constant=refuse_constant)
        except (ValueError, RecursionError) as error:
            raise _not_an_event(value, f"it is no JSON ({error})") from None
        try:
            return cls(**_members(found))
        except MessageRefused as error:
            raise _not_an_event(value, error.details["reason"]) from None


def make_event(data: object, **about: Any) -> Event:
    """An event with ``data``: bytes, text, or what JSON can express. ``about``: its attributes;
    where it has no media type, that of the data.
    """
    if isinstance(data, bytearray | memoryview):
        data = bytes(data)
    kind = (
        "application/octet-stream"
        if isinstance(data, bytes)
        else "text/plain"
        if isinstance(data, str)
        else "application/json"
    )
    suiting = {} if data is None else {"datacontenttype": kind}
    return Event(**{"source": DEFAULT_SOURCE, "data": data, **suiting, **about})


def _members(found: Any) -> dict[str, Any]:
    """The JSON of an event as arguments of Event. An attribute that is null is one that is not
    there.
    """
    if not isinstance(found, dict):
        raise MessageRefused(reason="it is no JSON object")
    event = {name: value for name, value in found.items() if value is not None}
    spec = event.pop("specversion", None)
    if spec != SPEC_VERSION:
        raise MessageRefused(reason=f"its specversion is {spec!r}; expected {SPEC_VERSION!r}")
    if missing := [name for name in _REQUIRED_ATTRIBUTES if name not in event]:
        raise MessageRefused(reason=f"it has no {missing[0]!r}")
    if "data_base64" in event:
        if "data" in event:
            raise MessageRefused(reason="it has both 'data' and 'data_base64'")
        event["data"] = _bytes(event.pop("data_base64"))
    own = {name: value for name, value in event.items() if name in _RESERVED_ATTRIBUTES}
    return {**own, "extensions": {name: value for name, value in event.items() if name not in own}}


def _bytes(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        raise MessageRefused(reason="its 'data_base64' is no base64") from None


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise MessageRefused(reason=f"{name!r} is {value!r}; expected text that is not empty")
    _check_utf8(name, value)


def _check_utf8(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MessageRefused(
            reason=f"{name!r} is {text!a}, half a surrogate pair in which is no character"
        ) from None


def _check_time(time: str) -> None:
    try:
        if not _TIME.fullmatch(time):
            raise ValueError
        datetime.fromisoformat(time.upper())
    except ValueError:
        raise MessageRefused(
            reason=f"'time' is {time!r}; expected RFC 3339, such as 2026-05-01T12:00:00Z"
        ) from None


def _check_extension(name: object, value: object) -> None:
    if (
        not isinstance(name, str)
        or not _EXTENSION_NAME.fullmatch(name)
        or name in _RESERVED_ATTRIBUTES
    ):
        raise MessageRefused(
            reason=(
                f"{name!r} is no name of an extension attribute; expected lower-case letters and"
                " digits"
            )
        )
    if isinstance(value, str):
        _check_utf8(name, value)
    elif not isinstance(value, int) or not -(2**31) <= value < 2**31:
        raise MessageRefused(
            reason=(
                f"extension {name!r} is {value!r}; expected text, a boolean, or a whole number of"
                " up to 32 bits"
            )
        )


def _not_an_event(value: bytes, reason: str) -> MessageRefused:
    return MessageRefused(
        reason=f"a message that begins with {value[:_SHOWN_BYTES]!r} is no CloudEvent: {reason}"
    )
