"""The rules of messages, of their number in one call, and of positions in a queue.

The rules of messages, and of their number in one call.

Positions in a queue: the last id that a reader has read, and the range to read next. Ids are
inclusive.
"""

from __future__ import annotations

import json
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from busmq_spark.errors import MessageRefused, MessageUnreadable, StateError
from busmq_spark.errors.foreign import class_name, message_text

MAX_ID = 2**53 - 1
"""The largest id that Lua and JavaScript can still count."""
MAX_VALUE_BYTES = 512 * 1024 * 1024
"""Redis' own limit of one value (``proto-max-bulk-len``)."""
CHUNK_MESSAGES = 1000
"""Most messages in one script call: Lua's unpack dies near 8 000 values, and 1 000 small ones take
Redis well under 1 ms.
"""
CHUNK_BYTES = 512 * 1024
"""Most bytes in one script call, so that large messages do not hold Redis long either; a single
larger message goes alone.
"""


class Message(NamedTuple):
    """A message: ``id`` from 1 upwards without holes, ``value`` as the bytes stored in Redis (npm
    peers see UTF-8 text).
    """

    id: int
    value: bytes

    @property
    def text(self) -> str:
        """Return the value as UTF-8; an invalid byte becomes U+FFFD, as for npm peers."""
        return self.value.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the value parsed as JSON.

        Raises:
            MessageUnreadable: The value is no JSON, or nested too deeply. It is a ValueError.
        """
        return decode_json(self.value)

    def ack(self) -> Coroutine[Any, Any, None]:
        """Acknowledge this message and all before it.

        Raises:
            StateError: The message was not taken with ``reliable=True``.
        """
        remedy = (
            "Consume, or connect the channel, with reliable=True, or do not ack. Messages of a"
            " group are acknowledged with group.ack(batch), those of a topic with member.ack(batch)"
        )
        raise StateError(
            event="ack", what=f"message {self.id}", state="not taken reliably", remedy=remedy
        )


class PubsubMessage(NamedTuple):
    """A published message: the bytes as they travelled (npm peers see UTF-8 text)."""

    value: bytes

    @property
    def text(self) -> str:
        """Return the value as text, like Message.text."""
        return self.value.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the value parsed, like Message.json."""
        return decode_json(self.value)


def encode_value(value: object) -> bytes:
    """Encode a value as npm busmq does (protocol 1.7): text and bytes as they are, everything else
    as compact JSON.

    Raises MessageRefused for what JSON cannot express, and for a value over 512 MB.
    """
    if isinstance(value, bytes):
        data = value
    elif isinstance(value, str):
        data = value.encode() if value.isascii() else _utf8(value)
    elif isinstance(value, bytearray | memoryview):
        data = bytes(value)
    else:
        data = _encode_json(value)
    if len(data) > MAX_VALUE_BYTES:
        raise _too_large_error(len(data))
    return data


def _encode_json(value: object) -> bytes:
    try:
        return json.dumps(
            value, ensure_ascii=False, separators=(",", ":"), allow_nan=False
        ).encode()
    except Exception as error:  # noqa: BLE001  # the value may be a mapping of another's
        why = (
            "it is nested too deeply" if isinstance(error, RecursionError) else message_text(error)
        )
        raise MessageRefused(
            reason=(
                f"a {class_name(value)} is no message ({why}); push str, bytes, or what JSON can"
                " express"
            )
        ) from None


def decode_json(text: bytes | str, what: str = "a message") -> Any:
    """Return the value of a JSON text.

    Raises MessageUnreadable for a text that is no JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise MessageUnreadable(
            what=what, found=repr(text[:40]), reason="it is nested too deeply"
        ) from None
    except ValueError as error:
        raise MessageUnreadable(
            what=what, found=repr(text[:40]), reason=message_text(error)
        ) from None


def _too_large_error(size: int) -> MessageRefused:
    return MessageRefused(
        reason=(
            f"a message of {size} bytes is over Redis' limit of {MAX_VALUE_BYTES} (512 MB). Store"
            " the body elsewhere and push its address"
        )
    )


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise MessageRefused(
            reason=(
                f"the text cannot be written as UTF-8 ({error}); half a surrogate pair is no"
                " character"
            )
        ) from None


def chunks(values: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Cut values into runs of at most CHUNK_MESSAGES and CHUNK_BYTES; keeps order, loses none.

    Raises MessageRefused for a value over 512 MB, before anything of its run is yielded.
    """
    total = len(values)
    start = 0
    while start < total:
        stop = min(start + CHUNK_MESSAGES, total)
        run = values[start:stop]
        if sum(map(len, run)) > CHUNK_BYTES:
            stop = start + _count_fitting(run)
            run = values[start:stop]
        yield run
        start = stop


def _count_fitting(run: Sequence[bytes]) -> int:
    room = CHUNK_BYTES
    for count, value in enumerate(run):
        size = len(value)
        if size > MAX_VALUE_BYTES:
            raise _too_large_error(size)
        room -= size
        if room < 0:
            return max(1, count)
    return len(run)


def refuse_constant(word: str) -> NoReturn:
    """For ``json.loads``, which takes NaN and the like."""
    raise ValueError(f"{word} is no JSON")


class Position(NamedTuple):
    """Everything up to and including the id ``last`` was read, in the life of the queue named
    ``born``.
    """

    born: str
    last: int
    mark: str = ""
    start: int | None = None
    lost: int = 0

    def to_json(self) -> dict[str, Any]:
        """The JSON object of one queue."""
        found: dict[str, Any] = {"born": self.born, "last": self.last, "mark": self.mark}
        if self.start is not None:
            found["from"] = self.start
        if self.lost:
            found["lost"] = self.lost
        return found


class Range(NamedTuple):
    """Ids first..last (inclusive) of one life of one queue, on the server with this index."""

    queue: str
    born: str
    first: int
    last: int
    server: int = 0

    @property
    def rows(self) -> int:
        """Return the number of ids."""
        return self.last - self.first + 1
