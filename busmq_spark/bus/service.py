"""The part that a provider and a requester share: the service as their owner, the clock of its
server, and messages that are read with retries.

The reply queues of a provider's requesters, kept attached for a while so that the next reply
costs one call (protocol 4.3).

The provider's side of a service: it takes requests, runs the handler for several at once, and
replies.

Rule 1. No request is taken that finds no room: others who serve may have it. So ``concurrency`` is
        the back-pressure.
Rule 2. In flight is what has a task. Every task ends with one last reply, unless no requester waits
        for it or the grace period is over.

The requester's side of a service: it pushes requests, and matches what comes on its reply queue
to those who wait.

A service: requests and their replies over queues, compatible with npm busmq (protocol 4.3).

async with bus.service("sum") as service:              # here
    await service.serve(lambda data: sum(data))
    await asyncio.Event().wait()  # serves until this block is left, without grace

async with bus.service("sum") as service:              # there
    await service.connect()
    assert await service.request([1, 2, 3]) == 6
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, get_args

from busmq_spark.arguments import check_number
from busmq_spark.bus.emitter import Emitter, Handle
from busmq_spark.bus.queue.base_queue import DEFAULT_QUEUE_TTL_S
from busmq_spark.bus.queue.consume import Consumption
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.waiting import EarlyCalls
from busmq_spark.errors import (
    BusError,
    ConfigError,
    LinkLost,
    RequestFailed,
    RequestTimeout,
    StateError,
)
from busmq_spark.errors.foreign import error_text, exc_info, stack_text
from busmq_spark.objects.service_and_channel_messages import (
    ABSENT,
    ServiceReply,
    ServiceRequest,
    decode_reply,
    decode_request,
    error_object,
    reply_error_text,
)
from busmq_spark.option_parsing import from_call
from busmq_spark.queue.keys import check_name, is_reply_queue, reply_queue, service_queue
from busmq_spark.queue.message import Message
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.redis_io.retry import Pauses

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext
    from busmq_spark.bus.queue.base_consumption import ConsumptionRoom
    from busmq_spark.bus.queue.base_queue import BaseQueue


CLOCK_VALID_S = 60.0
"""Seconds for which one reading of the server's clock is valid."""
CLOCK_JUMP_S = 1.0
"""A clock of ours that moved by so much against the other one was set: the server is asked
again.
"""


ServiceEvent = Literal["serving", "connected", "disconnect", "request", "error"]
log = logging.getLogger("busmq_spark")


class BaseService(Handle, Emitter[ServiceEvent]):
    """A service, as its provider and its requester see it."""

    events: tuple[ServiceEvent, ...] = get_args(ServiceEvent)

    def __init__(self, bus: BusContext, name: str) -> None:
        super().__init__(bus._spawn)
        self.bus, self.name = bus, check_name("service", name)
        self.room: ConsumptionRoom | None = None
        """Room that is asked for before requests and replies are taken."""

    def _make_queue(self, name: str) -> Queue:
        """Return a queue for requests or replies; over federation it is one of the other bus."""
        return Queue(self.bus, name)

    def _report_failure(self, error: BaseException) -> None:
        """Report an error of a handler: to the handlers of ``error``, else to the log, with its
        stack trace.
        """
        if self._handlers.get("error"):
            self._emit("error", error)
        else:
            log.error(
                "service %r: a handler failed: %s",
                self.name,
                error_text(error),
                exc_info=exc_info(error),
            )


class ServerClock:
    """Asks the server rarely, and counts on from there."""

    def __init__(self, queue: BaseQueue) -> None:
        self._queue = queue
        self._seen: tuple[float, float, float] | None = None

    async def now_ms(self) -> float:
        """Milliseconds since 1970. Raises LinkLost."""
        steady, wall = asyncio.get_running_loop().time(), time.time()
        if self._seen is not None:
            server_ms, steady_then, wall_then = self._seen
            passed = steady - steady_then
            if passed < CLOCK_VALID_S and abs(wall - wall_then - passed) < CLOCK_JUMP_S:
                return server_ms + passed * 1000
        self._seen = (await self._queue._server_ms(), steady, wall)
        return self._seen[0]


async def next_message_with_retries(
    consumption: Consumption, report: Callable[[BusError], None]
) -> Message | None:
    """The next message, None at the end. A refusal of Redis (out of memory, say) is reported, and
    the call is repeated after a pause.
    """
    pauses = Pauses(0.2, 5.0)
    while True:
        try:
            return await anext(consumption)
        except StopAsyncIteration:
            return None
        except BusError as error:
            report(error)
            await asyncio.sleep(pauses.next_s())


IDLE_REPLY_QUEUE_S = 3600.0
"""npm busmq stays attached to a requester's queue for an hour after its last request."""


@dataclass(slots=True)
class _Entry:
    queue: Queue
    users: int = 0
    used: float = 0.0
    attaching: asyncio.Lock = field(default_factory=asyncio.Lock)


class ProviderReplyQueues:
    """At most ``most`` queues, the one used longest ago leaves first. A list in use stays."""

    def __init__(
        self, make_queue: Callable[[str], Queue], most: int, idle_s: float = IDLE_REPLY_QUEUE_S
    ) -> None:
        self._make_queue, self._most, self._idle_s = make_queue, most, idle_s
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Queue]:
        """The queue, attached at least until the block ends."""
        if (entry := self._entries.get(name)) is None:
            entry = self._entries[name] = _Entry(self._make_queue(name))
        entry.users += 1
        self._entries.move_to_end(name)
        try:
            async with entry.attaching:
                if not entry.queue.attached:
                    await entry.queue.attach(
                        ttl_s=DEFAULT_QUEUE_TTL_S
                    )  # the requester may have gone, and the reply would stay unread for ever
            yield entry.queue
        finally:
            entry.users -= 1
            entry.used = asyncio.get_running_loop().time()
            await self._detach(
                [name for name, other in self._entries.items() if not other.users][
                    : max(0, len(self) - self._most)
                ]
            )

    async def sweep(self) -> None:
        """Detach the reply queues that have been idle for long, until cancelled."""
        while True:
            await asyncio.sleep(self._idle_s / 4)
            long_ago = asyncio.get_running_loop().time() - self._idle_s
            await self._detach(
                [
                    name
                    for name, entry in self._entries.items()
                    if not entry.users and entry.used < long_ago
                ]
            )

    async def close(self) -> None:
        """Leave every queue; one that is being used then, when its user is done."""
        self._most = 0
        await self._detach([name for name, entry in self._entries.items() if not entry.users])

    async def _detach(self, names: list[str]) -> None:
        async with AsyncExitStack() as stack:
            for name in names:
                stack.push_async_callback(self._entries.pop(name).queue.detach)


SendReply = Callable[[str, bytes, bool], Awaitable[None]]

MAX_REQUESTS_PER_TAKE = 10
"""Most requests taken in one call: a provider with much room leaves some for the others."""


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
        self._requests = service._make_queue(service_queue(service.name))
        self._replies = ProviderReplyQueues(service._make_queue, options.reply_queues)
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
        spawn, name = self._service.bus._spawn, self._service.name
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
        task = service.bus._spawn(self._handle(request), f"handling a request to {service.name}")
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
        self._service._report_failure(error)
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


MIN_TIMEOUT_S, MAX_TIMEOUT_S = 0.001, 7 * 86_400
"""Shortest and longest wait for a reply."""


class Requester:
    """Connected from ``start`` to ``stop``."""

    def __init__(self, service: BaseService, timeout_s: float) -> None:
        self._service, self._timeout_s = service, _check_timeout(timeout_s)
        self._token = new_token()
        self._requests = service._make_queue(service_queue(service.name))
        self._replies = service._make_queue(reply_queue(service.name, self._token))
        self._clock = ServerClock(self._requests)
        self._numbers = itertools.count(1)
        self._waiting: dict[str, PendingRequest] = {}
        self._settled = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self.active = False
        """Whether it takes requests."""

    async def start(self, ttl_s: int) -> None:
        """Attach both queues; returns when no reply can be missed any more."""
        await self._requests.attach(ttl_s=ttl_s)
        await self._replies.attach(ttl_s=ttl_s)
        self._replies.room = self._service.room
        consumption = self._replies.consume()
        await consumption.begin()
        self._reader = self._service.bus._spawn(
            self._read_replies(consumption), f"reading replies of {self._service.name}"
        )
        self.active = True

    async def stop(self, grace_s: float) -> None:
        """Take no more requests, wait for the replies to those under way, at most ``grace_s``;
        after that their callers get a StateError.
        """
        self.active = False
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._requests.detach)
            stack.push_async_callback(self._end_reading)
            try:
                async with asyncio.timeout(grace_s):
                    while self._waiting:
                        self._settled.clear()
                        await self._settled.wait()
            except TimeoutError:
                log.debug(
                    "service %r: %d requests are left without a reply",
                    self._service.name,
                    len(self._waiting),
                )
            finally:
                for waiting in self._waiting.values():
                    waiting.end(self._closed_error("wait for a reply of"))

    async def send(self, data: Any, timeout_s: float | None) -> None:
        """Returns when the request is stored. There is no reply to it."""
        timeout_s = self._timeout_s if timeout_s is None else _check_timeout(timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await self._push(data, self._new_id(), None, timeout_s)
        except TimeoutError:
            raise self._timeout_error(timeout_s) from None

    async def request(self, data: Any, timeout_s: float | None) -> Any:
        """The first reply of any kind."""
        async with self._send_request(data, timeout_s) as waiting:
            reply = self._reply_value(await waiting.next())
            return None if reply is ABSENT else reply

    async def stream(self, data: Any, timeout_s: float | None) -> AsyncGenerator[Any, None]:
        """Every reply that has a value, until the last."""
        async with self._send_request(data, timeout_s) as waiting:
            partial = True
            while partial:
                frame = await waiting.next()
                partial = frame.partial
                if (value := self._reply_value(frame)) is not ABSENT:
                    yield value

    @asynccontextmanager
    async def _send_request(
        self, data: Any, timeout_s: float | None
    ) -> AsyncIterator[PendingRequest]:
        """Send a request; its replies come in while the block runs."""
        timeout_s = self._timeout_s if timeout_s is None else _check_timeout(timeout_s)
        req_id = self._new_id()
        waiting = self._waiting[req_id] = PendingRequest(timeout_s)
        try:
            async with asyncio.timeout_at(waiting.deadline):
                await self._push(data, req_id, self._replies.name, timeout_s)
            yield waiting
        except TimeoutError:
            raise self._timeout_error(timeout_s) from None
        finally:
            del self._waiting[req_id]
            self._settled.set()

    async def _push(self, data: Any, req_id: str, reply_to: str | None, timeout_s: float) -> None:
        if not self.active:
            raise self._closed_error("send to")
        expires_ms = int(await self._clock.now_ms() + timeout_s * 1000)
        try:
            await self._requests.push(ServiceRequest(data, req_id, reply_to, expires_ms).encode())
        except StateError:
            if self.active:
                raise
            raise self._closed_error(
                "send to"
            ) from None  # its queues were detached while the clock was read

    async def _read_replies(self, consumption: Consumption) -> None:
        while (
            message := await next_message_with_retries(consumption, self._service._report)
        ) is not None:
            self._on_reply(message)

    def _on_reply(self, message: Message) -> None:
        try:
            frame = decode_reply(message.text)
        except ValueError as error:
            log.warning(
                "service %r: reply %d is dropped: %s", self._service.name, message.id, error
            )
            return
        waiting = self._waiting.get(frame.req_id) if isinstance(frame.req_id, str) else None
        if waiting is not None:  # else it is late, or was never asked for
            waiting.add_reply(frame)

    async def _end_reading(self) -> None:
        await self._replies.detach()
        if self._reader is not None:
            await asyncio.wait([self._reader])

    def _reply_value(self, frame: ServiceReply) -> Any:
        if frame.is_error:
            raise RequestFailed(
                service=self._service.name, reason=reply_error_text(frame.error), error=frame.error
            )
        return frame.reply

    def _new_id(self) -> str:
        return f"{self._token}.{next(self._numbers)}"

    def _timeout_error(self, timeout_s: float) -> RequestTimeout:
        return RequestTimeout(service=self._service.name, timeout_s=timeout_s)

    def _closed_error(self, event: str) -> StateError:
        return StateError(
            event=event,
            what=f"service {self._service.name!r}",
            state="disconnected",
            remedy="Call connect() first",
        )


class PendingRequest:
    """The replies to one request that its caller has not read. The timeout starts again with each
    reply.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._frames: deque[ServiceReply] = deque()
        self._something = asyncio.Event()
        self._ended: BusError | None = None
        self.deadline = asyncio.get_running_loop().time() + timeout_s

    def add_reply(self, frame: ServiceReply) -> None:
        self._frames.append(frame)
        self._something.set()
        self.deadline = asyncio.get_running_loop().time() + self._timeout_s

    def end(self, error: BusError) -> None:
        self._ended = error
        self._something.set()

    async def next(self) -> ServiceReply:
        """Raises TimeoutError when the time is up."""
        while not self._frames:
            if self._ended is not None:
                raise self._ended
            self._something.clear()
            async with asyncio.timeout_at(self.deadline):
                await self._something.wait()
        return self._frames.popleft()


def _check_timeout(timeout_s: float) -> float:
    return check_number("timeout_s", timeout_s, MIN_TIMEOUT_S, MAX_TIMEOUT_S, "seconds")


class Service(BaseService):
    """An end of a service: after ``serve`` it provides, after ``connect`` it asks. Leaving
    ``async with`` disconnects it.

    Events: ``serving``, ``connected``, ``disconnect``, ``request(request)`` for each that is
    handled, ``error(error)`` for what a handler raised and for a reply that could not be stored.
    """

    def __init__(self, bus: BusContext, name: str) -> None:
        super().__init__(bus, name)
        self._side: ServiceProvider | Requester | None = None
        self._lock = asyncio.Lock()
        self.early = EarlyCalls(self._not_connected)
        """Calls made before it is connected."""

    def __repr__(self) -> str:
        return f"Service({self.name!r})"

    async def __aenter__(self) -> Self:
        return self

    @property
    def serving(self) -> bool:
        """Whether it takes requests to serve."""
        return isinstance(self._side, ServiceProvider) and self._side.active

    @property
    def connected(self) -> bool:
        """Whether requests can be sent."""
        return isinstance(self._side, Requester) and self._side.active

    # -- providing ---------------------------------------------------------------------------------

    def serve(
        self,
        handler: Callable[..., Any],
        **options: Unpack[ServeKeywords],
    ) -> Coroutine[Any, Any, None]:
        """Answer requests with ``handler``, until ``disconnect`` or after ``max`` of them; returns
        when it has begun.

        The handler is a function or coroutine function; it gets the data, and if it needs a second
        argument, the Request. Its return value is the reply. An asynchronous generator gives one
        partial reply per item. An error in it goes to the requester: its message and code, with
        ``send_stack`` also the stack trace. A plain function runs on the loop, so it must not
        block. At most ``concurrency`` handlers run at once; further requests stay in the queue,
        also for other providers. Requests that have expired are dropped. ``reply_queues``: of how
        many requesters the reply queue is kept attached.
        """
        checked = from_call(ServeOptions, "serve", options)
        return self.early.begin(lambda: self._serve(handler, checked))

    async def _serve(self, handler: Callable[..., Any], options: ServeOptions) -> None:
        provider = ServiceProvider(self, handler, options)
        await self._start_side(provider, provider.start)
        self._emit("serving")

    # -- asking ------------------------------------------------------------------------------------

    def connect(self, *, timeout_s: float = 1, ttl_s: int = 30) -> Coroutine[Any, Any, None]:
        """Prepare for requests, which wait ``timeout_s`` for a reply unless they say otherwise.

        Requests made before this has ended wait for it.
        """
        return self.early.begin(lambda: self._connect(timeout_s, ttl_s))

    async def _connect(self, timeout_s: float, ttl_s: int) -> None:
        requester = Requester(self, timeout_s)
        await self._start_side(requester, lambda: requester.start(ttl_s))
        self._emit("connected")

    async def request(self, data: Any, *, timeout_s: float | None = None) -> Any:
        """The reply of one provider; if it answers in parts, the first part.

        Raises RequestTimeout when there is none in time (the provider may have done its work all
        the same), RequestFailed with ``details["error"]`` when the provider answers with an error.
        """
        return await (await self._connected_requester()).request(data, timeout_s)

    def stream(self, data: Any, *, timeout_s: float | None = None) -> AsyncGenerator[Any, None]:
        """The replies of one provider as they come: ``async for part in service.stream(data)``. The
        timeout begins anew with each.

        The request is sent when the first is asked for. Parts that come faster than they are read
        wait in memory. Raises as ``request`` does.
        """
        if self._side is None and self.early.opening:
            return self._stream_when_connected(data, timeout_s)
        return self._requester().stream(data, timeout_s)

    async def _stream_when_connected(
        self,
        data: Any,
        timeout_s: float | None,
    ) -> AsyncGenerator[Any, None]:
        async with aclosing((await self._connected_requester()).stream(data, timeout_s)) as parts:
            async for part in parts:
                yield part

    async def send(self, data: Any, *, timeout_s: float | None = None) -> None:
        """A request without a reply; returns when it is stored. Providers drop it if they find it
        only after ``timeout_s``.
        """
        await (await self._connected_requester()).send(data, timeout_s)

    # -- ending ------------------------------------------------------------------------------------

    async def disconnect(self, *, grace_s: float = 0) -> None:
        """Begin nothing new, wait until nothing is in flight but no longer than ``grace_s``, then
        detach; no error when not connected.

        Handlers that need longer are cancelled, and their requesters time out; requests that need
        longer raise StateError.
        """
        check_number("grace_s", grace_s, 0, MAX_TIMEOUT_S, "seconds")
        await self.early.let_begin()
        async with self._lock:
            if self._side is None:
                return
            try:
                await self._side.stop(grace_s)
            finally:
                self._side = None
                self.bus.release(self)
        self._emit("disconnect")

    async def detach(self) -> None:
        """Disconnect without grace, at the end of the bus."""
        await self.disconnect()

    # -- inside ------------------------------------------------------------------------------------

    async def _start_side(
        self, side: ServiceProvider | Requester, start: Callable[[], Any]
    ) -> None:
        async with self._lock:
            if self._side is not None:
                state, remedy = (
                    "serving or connected already",
                    "Disconnect it first, or use a second one",
                )
                raise StateError(
                    event="use", what=f"service {self.name!r}", state=state, remedy=remedy
                )
            try:
                await start()
            except BaseException:
                await side.stop(0)
                raise
            self._side = side
            self.bus._adopt(self)
            self.early.make()

    async def _connected_requester(self) -> Requester:
        if self._side is None and self.early.opening:
            await self.early.wait_open("ask")
        return self._requester()

    def _requester(self) -> Requester:
        if not isinstance(self._side, Requester):
            raise self._not_connected("ask")
        return self._side

    def _not_connected(self, event: str) -> StateError:
        what, remedy = f"service {self.name!r}", "Call connect() first"
        return StateError(event=event, what=what, state="not connected", remedy=remedy)
