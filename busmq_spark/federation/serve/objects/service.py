"""A service for a peer, ours to ours: npm clients of 3.1.0 do not say which service they mean
(protocol 4.3, Q17).

A provider listens to the event ``request(data, reply)`` and calls ``reply(error, value, partial)``;
everything but a partial reply is the last. A requester calls ``request(data, options, callback)``
and gets ``callback(error, value, partial)``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from busmq_spark.bus.service.service_provider import Request, ServeKeywords
from busmq_spark.errors import BusError, ConfigError, MessageRefused, RequestFailed
from busmq_spark.federation import error_codec
from busmq_spark.federation.serve.objects.base import (
    EVENT_METHODS,
    NEEDS_CONSUME,
    NEEDS_PUSH,
    MethodCall,
    ServedMethod,
    ServedObject,
    ttl_of,
    whole_number_option,
)
from busmq_spark.federation.serve.peer_work import TakeRoom
from busmq_spark.queue.keys import REPLY_QUEUE_SUFFIX

if TYPE_CHECKING:
    from busmq_spark.federation.npm_wire.creation_message import ObjectCreationMessage
    from busmq_spark.federation.serve.peer_channel import PeerChannel

DEFAULT_TIMEOUT_MS = 1000
MAX_CONCURRENT_REQUESTS = 100
"""Most requests that one provider may have at once."""
MAX_WAITING_PARTS = 1000
"""Most partial replies of a provider that wait to be stored."""


class ServedService(ServedObject):
    """A service object of the bus, for one channel."""

    kind = "service"
    emits = frozenset({"serving", "connected", "disconnect", "error", "request"})

    def __init__(self, peer: PeerChannel, made: ObjectCreationMessage) -> None:
        super().__init__(peer, made)
        # Its methods are refused without a name; the object must be there to say so.
        self._service = peer.bus.service(made.name or "without a name")
        self._service.room = TakeRoom(peer.work)
        self._service.on("serving", partial(self.emit, "serving"))
        self._service.on("connected", partial(self.emit, "connected", True))
        self._service.on("disconnect", partial(self.emit, "disconnect"))
        self._service.on("error", self._on_error)

    def allowed_method(self, name: str, values: list[Any]) -> ServedMethod:
        """Look up the method as for the others, save that a service without a name has no
        methods.
        """
        if not self.name and name not in EVENT_METHODS:
            raise ConfigError(
                reason=(
                    "this service has no name: the npm client of 3.1.0 does not send it (protocol"
                    " Q17), so it cannot federate services"
                )
            )
        if REPLY_QUEUE_SUFFIX.search(self.name):
            raise ConfigError(
                reason=(
                    f"a service may not be named {self.name!r}: its requests would be the replies"
                    " of another one"
                )
            )
        return super().allowed_method(name, values)

    async def detach_object(self) -> None:
        """Disconnect without grace."""
        await self._service.disconnect()

    async def serve(self, call: MethodCall) -> None:
        options: ServeKeywords = {"ttl_s": ttl_of(call.options)}
        for name in ("max", "concurrency"):
            if call.options.get(name) is not None:
                options[name] = whole_number_option(call.options, name, 1)
        options["concurrency"] = min(
            options.get("concurrency", MAX_CONCURRENT_REQUESTS), MAX_CONCURRENT_REQUESTS
        )
        await self._service.serve(self._forward_request, **options)
        self.answer(call)

    async def connect(self, call: MethodCall) -> None:
        await self._service.connect(
            timeout_s=whole_number_option(call.options, "reqTimeout", DEFAULT_TIMEOUT_MS) / 1000,
            ttl_s=ttl_of(call.options),
        )
        self.answer(call)

    async def disconnect(self, call: MethodCall) -> None:
        await self._service.disconnect(grace_s=max(0, call.expect_number(0, "grace", 0)) / 1000)

    def request(self, call: MethodCall) -> None:
        """Others may follow before it is answered."""
        if not call.values:
            raise ConfigError(reason="a request without data")
        options = (
            call.values[1] if len(call.values) > 1 and isinstance(call.values[1], dict) else {}
        )
        timeout_s = (
            None
            if options.get("reqTimeout") is None
            else whole_number_option(options, "reqTimeout", DEFAULT_TIMEOUT_MS) / 1000
        )
        self.peer.count_begun_call(call.size)
        work = self._request(call, timeout_s, parts=options.get("allowPartial") is True)
        task = self.peer.spawn(work, f"asking {self.name} for a peer")
        task.add_done_callback(lambda _: self.peer.count_finished_call(call.size))

    async def _request(self, call: MethodCall, timeout_s: float | None, *, parts: bool) -> None:
        room = self.peer.work.send_buffer.wait_room
        try:
            if call.callback is None:
                await self._service.send(call.values[0], timeout_s=timeout_s)
            elif not parts:
                value = await self._service.request(call.values[0], timeout_s=timeout_s)
                await room()
                self.answer(call, None, value, False)
            else:
                async for part in self._service.stream(call.values[0], timeout_s=timeout_s):
                    await room()
                    self.answer(call, None, part, True)
                self.answer(call, None, None, False)
        except BusError as error:
            self.peer.send_error(call.callback, error)

    async def _forward_request(self, data: Any, request: Request) -> None:
        """Forward a request, until the peer has given its last reply."""
        await self.peer.work.send_buffer.wait_room()
        replies = _RepliesToRequest(self)
        try:
            try:
                for id, _ in self.listeners_to_invoke("request"):
                    self.peer.invoke(id, data, replies.on_reply)
            except MessageRefused as refusal:
                replies.on_reply(error_codec.error_to_wire(refusal))
            async for error, value, is_part in replies:
                if error is not None:
                    await request.fail(error if isinstance(error, str | dict) else str(error))
                elif is_part:
                    await request.partial(value)
                elif value is None and request.parts:
                    await request.reply()
                else:
                    await request.reply(value)
        finally:
            replies.forget_callback()

    def _on_error(self, error: BaseException) -> None:
        if isinstance(error, BusError):
            self.peer.send_error(None, error)

    methods: ClassVar[dict[str, ServedMethod]] = {
        **EVENT_METHODS,
        "serve": ServedMethod(serve, NEEDS_CONSUME),
        "connect": ServedMethod(connect, NEEDS_PUSH),
        "disconnect": ServedMethod(disconnect),
        "isServing": ServedMethod(lambda self, call: self.answer(call, self._service.serving)),
        "isConnected": ServedMethod(lambda self, call: self.answer(call, self._service.connected)),
        "request": ServedMethod(request, NEEDS_PUSH),
    }


class _RepliesToRequest:
    """The replies of a provider to one request: ``on_reply`` is the function that it calls."""

    def __init__(self, owner: ServedService) -> None:
        self._owner = owner
        self._waiting: asyncio.Queue[tuple[Any, Any, bool, int]] = asyncio.Queue()
        self._over = False

    def on_reply(self, error: Any = None, value: Any = None, is_part: Any = False, *_: Any) -> None:
        if self._over:
            return
        if self._waiting.qsize() >= MAX_WAITING_PARTS:
            failed = RequestFailed(
                service=self._owner.name,
                reason=f"the provider gave more than {MAX_WAITING_PARTS} partial replies at once",
            )
            error, is_part = error_codec.error_to_wire(failed), False
        self._over = is_part is not True or error is not None
        peer = self._owner.peer
        peer.count_begun_call(peer.line_bytes)
        self._waiting.put_nowait((error, value, not self._over, peer.line_bytes))

    async def __aiter__(self) -> AsyncIterator[tuple[Any, Any, bool]]:
        part = True
        while part:
            error, value, part, size = await self._waiting.get()
            self._owner.peer.count_finished_call(size)
            yield error, value, part

    def forget_callback(self) -> None:
        """The peer may not call it any more, and what it said too much is dropped."""
        self._over = True
        while not self._waiting.empty():
            self._owner.peer.count_finished_call(self._waiting.get_nowait()[3])
        functions = self._owner.peer.functions
        functions.forget(functions.register(self.on_reply))
