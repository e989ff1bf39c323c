"""The requester's side of a service: it pushes requests, and matches what comes on its reply queue
to those who wait.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from busmq_spark.arguments import check_number
from busmq_spark.bus.service.base_service import ServerClock, next_message_with_retries
from busmq_spark.errors import BusError, RequestFailed, RequestTimeout, StateError
from busmq_spark.objects.service import (
    ABSENT,
    ServiceReply,
    ServiceRequest,
    decode_reply,
    error_text,
)
from busmq_spark.queue.keys import reply_queue, service_queue
from busmq_spark.queue.message import Message
from busmq_spark.redis_io.queue_location import new_token

if TYPE_CHECKING:
    from busmq_spark.bus.queue.consume import Consumption
    from busmq_spark.bus.service.base_service import BaseService

log = logging.getLogger("busmq_spark")
MIN_TIMEOUT_S, MAX_TIMEOUT_S = 0.001, 7 * 86_400
"""Shortest and longest wait for a reply."""


class Requester:
    """Connected from ``start`` to ``stop``."""

    def __init__(self, service: BaseService, timeout_s: float) -> None:
        self._service, self._timeout_s = service, _check_timeout(timeout_s)
        self._token = new_token()
        self._requests = service.make_queue(service_queue(service.name))
        self._replies = service.make_queue(reply_queue(service.name, self._token))
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
        self._reader = self._service.bus.spawn(
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
                service=self._service.name, reason=error_text(frame.error), error=frame.error
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
