"""The provider's side of a service: it takes requests, runs the handler for several at once, and
replies.

Rule 1. No request is taken that finds no room: others who serve may have it. So ``concurrency`` is
        the back-pressure.
Rule 2. In flight is what has a task. Every task ends with one last reply, unless no requester waits
        for it or the grace period is over.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from busmq_spark.bus.queue.consume import Consumption
from busmq_spark.bus.service.base_service import ServerClock, next_message_with_retries
from busmq_spark.bus.service.provider_reply_queues import ProviderReplyQueues
from busmq_spark.errors import BusError, ConfigError, LinkLost, StateError
from busmq_spark.errors.foreign import stack_text
from busmq_spark.objects.service import (
    ABSENT,
    ServiceReply,
    ServiceRequest,
    decode_request,
    error_object,
)
from busmq_spark.queue.keys import is_reply_queue, service_queue
from busmq_spark.queue.message import Message

if TYPE_CHECKING:
    from busmq_spark.bus.service.base_service import BaseService

SendReply = Callable[[str, bytes, bool], Awaitable[None]]

MAX_REQUESTS_PER_TAKE = 10
"""Most requests taken in one call: a provider with much room leaves some for the others."""
log = logging.getLogger("busmq_spark")


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


class ServeKeywords(TypedDict, total=False):
    """The options of ``serve``; see ServeOptions."""

    ttl_s: int
    max: int | None
    concurrency: int
    reply_queues: int
    send_stack: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of serving. ``ttl_s`` and ``max`` are those of npm busmq."""

    ttl_s: int = 30
    max: int | None = None
    concurrency: int = 100
    reply_queues: int = 1000
    send_stack: bool = False

    def __post_init__(self) -> None:
        for name in ("max", "concurrency", "reply_queues"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(reason=f"{name} is {value}; expected at least 1")


class ServiceProvider:
    """Serves from ``start`` to ``stop``."""

    def __init__(
        self, service: BaseService, handler: Callable[..., Any], options: ServeOptions
    ) -> None:
        self._service, self._options = service, options
        self._handler, self._with_request = handler, _takes_request(handler)
        self._requests = service.make_queue(service_queue(service.name))
        self._replies = ProviderReplyQueues(service.make_queue, options.reply_queues)
        self._clock = ServerClock(self._requests)
        self._dropped = 0
        self._left = options.max
        self._running: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._cancelling = False

    @property
    def active(self) -> bool:
        """Whether it takes requests."""
        return self._requests.consuming

    async def start(self) -> None:
        """Attach and begin; returns when no request can be missed any more."""
        spawn, name = self._service.bus.spawn, self._service.name
        await self._requests.attach(ttl_s=self._options.ttl_s)
        self._requests.room = self._service.room
        consumption = self._requests.consume()
        await consumption.begin()
        self._loops = [
            spawn(self._accept_all(consumption), f"serving {name}"),
            spawn(self._replies.sweep(), f"leaving idle reply queues of {name}"),
        ]

    async def stop(self, grace_s: float) -> None:
        """Take no more requests, let the handlers end within ``grace_s``, cancel the rest,
        detach.
        """
        me = asyncio.current_task()  # a handler may ask for it: it is not waited for
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._requests.detach)
            stack.push_async_callback(self._replies.close)
            stack.push_async_callback(self._cancel_all_except, me)
            await self._requests.stop()
            if handlers := self._running - {me}:
                await asyncio.wait(handlers, timeout=grace_s)

    async def _cancel_all_except(self, me: asyncio.Task[Any] | None) -> None:
        self._cancelling = True
        tasks = {*self._loops, *self._running} - {me}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- taking ------------------------------------------------------------------------------------

    async def _accept_all(self, consumption: Consumption) -> None:
        while self._left != 0:
            while not (room := self._options.concurrency - len(self._running)):
                self._room.clear()
                await self._room.wait()
            consumption.prefetch = min(
                MAX_REQUESTS_PER_TAKE, room, self._left or MAX_REQUESTS_PER_TAKE
            )
            message = await next_message_with_retries(consumption, self._service._report)
            if message is None:
                return
            await self._accept(message)
        try:
            await consumption.stop()
        except BusError as error:
            self._service._report(
                error
            )  # the next provider takes over the requests that this one leaves unfinished

    async def _accept(self, message: Message) -> None:
        service = self._service
        try:
            frame = decode_request(message.text)
            if frame.reply_to is not None and not is_reply_queue(service.name, frame.reply_to):
                # A requester must not be able to make the provider write to an arbitrary queue.
                raise ValueError(
                    f"its replyTo is {frame.reply_to[:80]!r}, not a reply queue of this service"
                )
        except ValueError as error:
            log.warning("service %r: request %d is dropped: %s", service.name, message.id, error)
            return
        if frame.is_expired(time.time() * 1000) and await self._drop_if_expired(frame, message):
            return
        if self._left is not None:
            self._left -= 1
        request = Request(frame, self._send, stacks=self._options.send_stack)
        task = service.bus.spawn(self._handle(request), f"handling a request to {service.name}")
        self._running.add(task)
        task.add_done_callback(self._on_task_end)
        if (room := service.room) is not None:  # the request is held until its handler ends
            size = len(message.value)
            room.release(-size)
            task.add_done_callback(lambda _: room.release(size))
        service._emit("request", request)

    async def _drop_if_expired(self, frame: ServiceRequest, message: Message) -> bool:
        """Whether a request is too late by the clock of the server, too: ours may be wrong."""
        try:
            now_ms = await self._clock.now_ms()
        except BusError:
            now_ms = time.time() * 1000
        if not frame.is_expired(now_ms):
            return False
        self._dropped += 1
        if (
            str(self._dropped).rstrip("0") == "1"
        ):  # 1, 10, 100 …: after a long pause there may be thousands
            log.warning(
                "service %r: request %d is dropped, as its requester waits no more: it expired %.1f"
                " s ago by the clock of Redis (or its requester's clock is behind); %d dropped"
                " so far",
                *(
                    self._service.name,
                    message.id,
                    (now_ms - (frame.expires_ms or 0)) / 1000,
                    self._dropped,
                ),
            )
        return True

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._room.set()

    # -- handling ----------------------------------------------------------------------------------

    async def _handle(self, request: Request) -> None:
        try:
            await self._answer(request)
        except BaseException as error:  # no request ends the service
            if isinstance(error, asyncio.CancelledError) and (
                self._cancelling or any(task.cancelling() for task in self._loops)
            ):
                raise
            await self._answer_failure(request, error)  # it may have cancelled itself

    async def _answer(self, request: Request) -> None:
        outcome = (
            self._handler(request.data, request)
            if self._with_request
            else self._handler(request.data)
        )
        if inspect.isawaitable(outcome):
            outcome = await outcome
        if isinstance(outcome, AsyncIterator):
            async with AsyncExitStack() as stack:
                if (close := getattr(outcome, "aclose", None)) is not None:
                    stack.push_async_callback(close)
                async for item in outcome:
                    await request.partial(item)
            await request.reply()
        elif not request.answered:
            await (request.reply() if outcome is None and request.parts else request.reply(outcome))

    async def _answer_failure(self, request: Request, error: BaseException) -> None:
        self._service.report_failure(error)
        if request.answered:
            return
        try:
            await request.fail(error)
        except BusError as another:
            self._service._report(another)

    async def _send(self, reply_to: str, frame: bytes, last: bool) -> None:
        async with self._replies.use(reply_to) as queue:
            try:
                await queue.push(frame)
            except LinkLost:
                if not last:
                    raise
                await queue.push(frame)  # a requester that has a last reply already ignores it


def _takes_request(handler: Callable[..., Any]) -> bool:
    """Whether the handler has two parameters. Raises ConfigError when it can be called neither with
    one nor with two.
    """
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return False  # some builtins have no signature
    for values in (1, 2):
        try:
            signature.bind(*range(values))
        except TypeError:
            continue
        return values == 2
    raise ConfigError(
        reason=(
            "a handler is called with the request's data, or with data and Request; this one takes"
            f" {signature}"
        )
    )
