"""The frames of a channel, and which of them may be acked (protocol chapter 3)."""

from __future__ import annotations

from collections import deque
from enum import IntEnum

from busmq_spark.errors import ProtocolError
from busmq_spark.queue.message import Message
from busmq_spark.queue.queue import check_id


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
