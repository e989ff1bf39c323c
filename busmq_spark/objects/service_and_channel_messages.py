"""The messages of services and of channels (protocol 4.3 and chapter 3).

The messages between a requester and a provider of a service (protocol 4.3): JSON objects, keys
in the order of npm busmq 3.1.0.

Rule 1. A key whose value is absent is left out; ABSENT and None (JSON's null) are two things.
Rule 2. ``reqId`` belongs to the requester: whatever it is, it goes back as it came.
Rule 3. Unknown keys are ignored; a malformed frame raises ValueError, and its reader goes on with
        the next frame.

The frames of a channel, and which of them may be acked (protocol chapter 3).
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, final

from busmq_spark.errors import ProtocolError
from busmq_spark.errors.foreign import code_of, message_text
from busmq_spark.queue.message import Message, encode_value, refuse_constant
from busmq_spark.queue.queue import check_id


@final
class AbsentValue:
    """The type of ABSENT."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = AbsentValue()
"""JavaScript's undefined: the key is not there."""


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """A request; without ``reply_to`` the requester expects no reply. ``expires_ms``: epoch
    milliseconds, None for a request that never expires.
    """

    data: Any
    req_id: Any = ABSENT
    reply_to: str | None = None
    expires_ms: float | None = None

    def encode(self) -> bytes:
        """Raises MessageRefused when JSON cannot express the data."""
        return _encode(
            data=self.data,
            replyTo=_none_to_absent(self.reply_to),
            reqId=self.req_id,
            expires=_none_to_absent(self.expires_ms),
        )

    def is_expired(self, now_ms: float) -> bool:
        """Whether the requester has stopped waiting, by the clock of the provider."""
        return self.expires_ms is not None and now_ms > self.expires_ms


@dataclass(frozen=True, slots=True)
class ServiceReply:
    """A reply; one that is not ``partial`` is the last. ``error`` is None, a text or an object;
    some providers leave it out.
    """

    req_id: Any
    error: Any = None
    reply: Any = ABSENT
    partial: bool = False

    def encode(self) -> bytes:
        """Raises MessageRefused when JSON cannot express the reply."""
        return _encode(
            err=self.error,
            reply=self.reply,
            reqId=self.req_id,
            partial=True if self.partial else ABSENT,
        )

    @property
    def is_error(self) -> bool:
        """Whether the provider reports an error."""
        return self.error is not None and self.error is not ABSENT


def decode_request(text: str) -> ServiceRequest:
    """Raises ValueError for what is no request."""
    fields = _decode_object(text)
    reply_to, expires = fields.get("replyTo"), fields.get("expires")
    if reply_to is not None and not isinstance(reply_to, str):
        raise ValueError(f"its replyTo is a {type(reply_to).__name__}, not the name of a queue")
    try:
        (reply_to or "").encode()
    except UnicodeEncodeError:
        raise ValueError(
            "its replyTo has half a surrogate pair: no queue can be called so"
        ) from None
    is_number = isinstance(expires, int | float) and not isinstance(expires, bool)
    return ServiceRequest(
        fields.get("data"),
        fields.get("reqId", ABSENT),
        reply_to or None,
        expires if is_number else None,
    )


def decode_reply(text: str) -> ServiceReply:
    """Raises ValueError for what is no reply."""
    fields = _decode_object(text)
    return ServiceReply(
        fields.get("reqId", ABSENT),
        fields.get("err", ABSENT),
        fields.get("reply", ABSENT),
        fields.get("partial") is True,
    )


def error_object(error: BaseException, stack: str | None = None) -> dict[str, Any]:
    """An exception as npm busmq sends it: ``message``, ``stack`` (only when given: it shows the
    peer our code), ``code`` if it has one.
    """
    described: dict[str, Any] = {"message": message_text(error)}
    if stack is not None:
        described["stack"] = stack.encode("utf-8", "replace").decode()
    if (code := code_of(error)) is not None:
        described["code"] = code
    return described


def reply_error_text(error: Any) -> str:
    """The reason in a provider's error, for people."""
    if isinstance(error, dict) and isinstance(message := error.get("message"), str) and message:
        return message
    if isinstance(error, str):
        return error
    try:
        return json.dumps(error, ensure_ascii=False)
    except RecursionError:
        return "an error that is nested too deeply"


def _encode(**fields: Any) -> bytes:
    return encode_value({name: value for name, value in fields.items() if value is not ABSENT})


def _none_to_absent(value: Any) -> Any:
    return ABSENT if value is None else value


def _decode_object(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text, parse_constant=refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError(f"it is a JSON {type(fields).__name__}, not an object")
    return fields


class ChannelFrameKind(IntEnum):
    """The kind of a frame: the digit between its colons."""

    HERE = 1
    """The sender is connected."""
    MESSAGE = 2
    """A message of the application follows."""
    LEAVING = 3
    """The sender disconnects; the channel stays."""
    END = 4
    """The channel ends, for both."""


_KIND_OF_FRAME_HEAD = {b":%d:" % kind: kind for kind in ChannelFrameKind}


def encode_frame(kind: ChannelFrameKind, body: bytes = b"") -> bytes:
    """The message that carries a frame through a queue."""
    return b":%d:%b" % (kind, body)


def frame_kind(message: Message, queue: str) -> ChannelFrameKind:
    """Decode a frame. Raises ProtocolError when it is malformed or its kind is unknown."""
    found = message.value[:3]
    if (kind := _KIND_OF_FRAME_HEAD.get(found)) is None:
        raise ProtocolError(
            id=message.id,
            queue=queue,
            found=repr(found)[1:],
            expected="':1:' to ':4:', as the frames of a channel do",
        )
    return kind


def carries_application_message(message: Message) -> bool:
    """Whether the frame carries a message of the application."""
    return message.value.startswith(b":2:")


def frame_body(message: Message) -> Message:
    """Return the application's message, with the id of its frame."""
    return Message(message.id, message.value[3:])


class ChannelAckTracker:
    """Which frames of a reliable channel may be acked: acks are cumulative, so none goes beyond a
    message that the application has not acked.

    npm busmq acks each control frame at once, and with it every message before it (protocol Q11).
    """

    def __init__(self) -> None:
        self._open: deque[int] = deque()
        self._seen = self._done = 0

    def on_handed_over(self, id: int, *, waits: bool) -> None:
        """A frame was handed over; ``waits`` for the application's ack."""
        if (
            id <= self._seen or not self._seen
        ):  # the first, or a new life of the queue: its ids began again at 1
            self._open.clear()
            self._done = id - 1
        self._seen = id
        if waits:
            self._open.append(id)

    def ack(self, id: int) -> None:
        """The application acks its messages up to this id. Messages that it has not been handed yet
        are not among them.
        """
        check_id(id)
        while self._open and self._open[0] <= id:
            self._open.popleft()

    @property
    def id_to_ack(self) -> int:
        """The id to ack in Redis now; 0 when there is nothing to ack."""
        last = self._open[0] - 1 if self._open else self._seen
        return last if last > self._done else 0

    def on_acked(self, id: int) -> None:
        """Redis has acked up to ``id``; until then the same id stays due."""
        if id <= self._seen:
            self._done = max(self._done, id)
