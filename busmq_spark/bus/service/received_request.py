"""The view of a request that its handler has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from busmq_spark.errors import StateError
from busmq_spark.errors.foreign import stack_text
from busmq_spark.objects.service import ABSENT, ServiceReply, ServiceRequest, error_object

SendReply = Callable[[str, bytes, bool], Awaitable[None]]


class Request:
    """A request under way. The return value of the handler is the reply; with these methods it may
    answer earlier, in parts, or with an error.

    They do nothing when no requester waits for a reply.
    """

    def __init__(self, frame: ServiceRequest, send: SendReply, *, stacks: bool = False) -> None:
        """``send``: name of the reply queue, frame, whether it is the last. ``stacks``: errors
        carry their stack trace.
        """
        self._frame, self._send, self._stacks = frame, send, stacks
        self.answered = False
        """Whether the last reply is given."""
        self.parts = 0
        """The number of partial replies so far."""

    @property
    def data(self) -> Any:
        """Return the data of the requester."""
        return self._frame.data

    @property
    def reply_to(self) -> str | None:
        """The queue on which the requester waits: the same for all of one requester's requests.
        Return None when the requester waits for no reply.
        """
        return self._frame.reply_to

    async def partial(self, value: Any) -> None:
        """Give a partial reply: more follow. It gives the requester's timeout a fresh start.
        Returns once it is stored.

        A Node peer that reads the replies as a stream cannot take None.
        """
        await self._send_reply(value, last=False)
        self.parts += 1

    async def reply(self, value: Any = ABSENT) -> None:
        """Give the last reply; without a value when the partial ones were all."""
        await self._send_reply(value, last=True)

    async def fail(self, error: BaseException | str | Mapping[str, Any]) -> None:
        """Answer with an error: a text, an object, or an exception, of which the peer sees the
        message and the code.
        """
        if isinstance(error, BaseException):
            stack = stack_text(error) if self._stacks else None
            await self._send_reply(ABSENT, last=True, error=error_object(error, stack))
        else:
            await self._send_reply(
                ABSENT, last=True, error=error if isinstance(error, str) else dict(error)
            )

    async def _send_reply(self, value: Any, *, last: bool, error: Any = None) -> None:
        if self.answered:
            raise StateError(
                event="answer",
                what="the request",
                state="answered already",
                remedy="Give one last reply, and partial ones before it",
            )
        frame = ServiceReply(self._frame.req_id, error, value, partial=not last).encode()
        self.answered = last
        if self._frame.reply_to is not None:
            await self._send(self._frame.reply_to, frame, last)
