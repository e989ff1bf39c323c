"""A service: requests and their replies over queues, compatible with npm busmq (protocol 4.3).

async with bus.service("sum") as service:              # here
    await service.serve(lambda data: sum(data))
    await asyncio.Event().wait()  # serves until this block is left, without grace

async with bus.service("sum") as service:              # there
    await service.connect()
    assert await service.request([1, 2, 3]) == 6
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self, Unpack

from busmq_spark.arguments import check_number
from busmq_spark.bus.early_calls import EarlyCalls
from busmq_spark.bus.service.base_service import BaseService
from busmq_spark.bus.service.requester import MAX_TIMEOUT_S, Requester
from busmq_spark.bus.service.service_provider import ServeKeywords, ServeOptions, ServiceProvider
from busmq_spark.errors import StateError
from busmq_spark.option_parsing import from_call

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext


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
            self.bus.adopt(self)
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
