"""Channels, pubsubs and services as peers see them.

A channel for a peer (protocol chapter 3, 5.6).

A pubsub for a peer (protocol 4.1, 5.6), above all the notifications that every npm client opens
first (5.8).

A service for a peer, ours to ours: npm clients of 3.1.0 do not say which service they mean
(protocol 4.3, Q17).

A provider listens to the event ``request(data, reply)`` and calls ``reply(error, value, partial)``;
everything but a partial reply is the last. A requester calls ``request(data, options, callback)``
and gets ``callback(error, value, partial)``.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from busmq_spark.bus.channel import ChannelEvent, ChannelKeywords
from busmq_spark.bus.service import Request, ServeKeywords
from busmq_spark.errors import (
    BusError,
    ConfigError,
    MessageRefused,
    MessagesMissed,
    QueueBusy,
    RequestFailed,
    WireError,
)
from busmq_spark.federation import error_codec
from busmq_spark.federation.bounded_json import MAX_SHORT_BYTES
from busmq_spark.federation.gate.rights import VERBS, RequiredRight
from busmq_spark.federation.npm_wire.dnode import DnodeCallbackRef
from busmq_spark.federation.serve.objects.base import (
    EVENT_METHODS,
    NEEDS_ADMIN,
    NEEDS_BROWSE,
    NEEDS_CONSUME,
    NEEDS_NOTHING,
    NEEDS_PUSH,
    MethodCall,
    NeededVerbs,
    ServedMethod,
    ServedObject,
    consume_keywords,
    to_storable,
    ttl_of,
    whole_number_option,
)
from busmq_spark.federation.serve.peer import TakeRoom
from busmq_spark.queue.keys import ANNOUNCEMENT_CHANNEL, REPLY_QUEUE_SUFFIX, announced_name

if TYPE_CHECKING:
    from busmq_spark.bus.channel import Channel
    from busmq_spark.federation.npm_wire.channels import ObjectCreationMessage
    from busmq_spark.federation.serve.peer import PeerChannel
    from busmq_spark.queue.message import PubsubMessage


NEEDS_CONSUME_AND_PUSH = NEEDS_CONSUME + NEEDS_PUSH
# npm's name -> ours
EVENT_OF_NPM_EVENT: dict[str, ChannelEvent] = {
    "connect": "connect",
    "disconnect": "disconnect",
    "remote:connect": "remote_connect",
    "remote:disconnect": "remote_disconnect",
    "end": "end",
}


class ServedChannel(ServedObject):
    """A channel object of the bus, for one channel of the wire.

    Messages are taken while there is room to send them, whether or not there are listeners yet, as
    npm does. Messages that have not left for the peer when it ends go back to their place in the
    queue.
    """

    kind = "channel"
    emits = frozenset({*EVENT_OF_NPM_EVENT, "error", "message", "consuming"})

    def __init__(self, peer: PeerChannel, made: ObjectCreationMessage) -> None:
        super().__init__(peer, made)
        self._channel = peer.bus.channel(made.name, *made.roles)
        self._channel.room = TakeRoom(peer.work)
        for theirs, ours in EVENT_OF_NPM_EVENT.items():
            self._channel.on(ours, partial(self.emit, theirs))
        self._channel.on("error", self._on_error)
        self._opening: asyncio.Task[Any] | None = None

    async def detach_object(self) -> None:
        """Disconnect, with the frame for the other side of the channel."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self.stop_sending_messages()
        await self._channel.disconnect()

    def on_waiting_call(self, name: str) -> None:
        """A peer that connects reliably may wait for another reader to end; a peer that leaves
        waits no longer.
        """
        if name in ("disconnect", "detach", "end") and self._opening is not None:
            self._opening.cancel()

    def connect(self, call: MethodCall) -> Coroutine[Any, Any, None]:
        return self._open(self._connect_or_report(self._channel.connect, _channel_keywords(call)))

    def listen(self, call: MethodCall) -> Coroutine[Any, Any, None]:
        return self._open(self._connect_or_report(self._channel.listen, _channel_keywords(call)))

    async def _connect_or_report(
        self, connect: Callable[..., Coroutine[Any, Any, Channel]], keywords: ChannelKeywords
    ) -> None:
        """A peer that has to wait until another reader ends gets an error for it: npm has no such
        wait.
        """
        if keywords.get("wait"):
            try:
                await connect(**{**keywords, "wait": False})
            except QueueBusy as error:
                self.peer.send_error(None, error)
            else:
                return
        await connect(**keywords)

    def _open(self, opening: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, None]:
        self._opening = asyncio.ensure_future(
            opening
        )  # now: the call after it may have come already
        return self._wait_until_open(self._opening)

    async def _wait_until_open(self, opening: asyncio.Task[Any]) -> None:
        await asyncio.wait([opening])
        self._opening = None
        if not opening.cancelled():
            opening.result()
            self._start_reading()

    async def disconnect(self, _: MethodCall) -> None:
        await self.stop_sending_messages()
        await self._channel.disconnect()

    async def finish(self, _: MethodCall) -> None:
        await self.stop_sending_messages()
        await self._channel.end()

    def send(self, call: MethodCall) -> None:
        if not call.values or isinstance(call.values[0], DnodeCallbackRef):
            raise MessageRefused(reason="send without a message; undefined cannot be sent")
        self.answer_push(call, self._channel.send(to_storable(call.values[0])))

    async def send_to(self, call: MethodCall) -> None:
        endpoint = call.expect_value(0, str, "the endpoint")
        if not endpoint or ":" in endpoint or len(call.values) < 2:
            raise ConfigError(reason="sendTo takes a role without a colon, and a message")
        self.answer(
            call,
            None,
            await self._channel.send_to(to_storable(endpoint), to_storable(call.values[1])),
        )

    async def ack(self, call: MethodCall) -> None:
        """Answered only when it fails, as for a queue."""
        await self._channel.ack(call.expect_number(0, "id", -1))

    def _start_reading(self) -> None:
        self._reader = self.peer.spawn(
            self._send_channel_messages(), f"reading channel {self.name} for a peer"
        )

    async def _send_channel_messages(self) -> None:
        room, messages = self.peer.work.send_buffer.wait_room, self._channel.messages()
        while await room():
            try:
                message, arrived = await messages.take()
            except StopAsyncIteration:
                if self._channel.connected:  # after ``max``; npm's servers do not say so
                    self.emit("consuming", False)
                return
            except BusError:
                return  # the channel has emitted it as ``error``
            if not self.peer.is_open:
                return  # disconnecting puts it back
            await self.send_message(await self.encode_message(message.value, message.id), arrived)

    def _on_error(self, error: BusError) -> None:
        self.peer.send_error(None, error)

    methods: ClassVar[dict[str, ServedMethod]] = {
        **EVENT_METHODS,
        "connect": ServedMethod(connect, NEEDS_CONSUME_AND_PUSH),
        "attach": ServedMethod(connect, NEEDS_CONSUME_AND_PUSH),
        "listen": ServedMethod(listen, NEEDS_CONSUME_AND_PUSH),
        "send": ServedMethod(send, NEEDS_PUSH),
        "sendTo": ServedMethod(send_to, NEEDS_PUSH),
        "disconnect": ServedMethod(disconnect),
        "detach": ServedMethod(disconnect),
        "end": ServedMethod(finish, NEEDS_PUSH),
        "isAttached": ServedMethod(lambda self, call: self.answer(call, self._channel.connected)),
        "ack": ServedMethod(ack, NEEDS_CONSUME),
    }


def _channel_keywords(call: MethodCall) -> ChannelKeywords:
    options = call.options
    return {
        "ttl_s": ttl_of(options),
        "maxsize": max(0, whole_number_option(options, "maxsize", 0)),
        "discoverable": options.get("discoverable") is True,
        **consume_keywords(options),
    }


MAX_WAITING_MESSAGES, MAX_WAITING_BYTES = 1000, 8 * 1024 * 1024
"""Most messages that wait for a peer: so many for each pubsub, so many bytes for all of a
connection.
"""
MESSAGE_OVERHEAD_BYTES = 200


class ServedPubsub(ServedObject):
    """A pubsub object of the bus, for one channel. A peer that reads too slowly misses messages,
    and gets an ``error`` event.
    """

    kind = "pubsub"
    emits = frozenset({"subscribed", "unsubscribed", "error", "message"})

    def __init__(self, peer: PeerChannel, made: ObjectCreationMessage) -> None:
        super().__init__(peer, made)
        self._quota = peer.work.quota
        if self._quota.pubsubs >= peer.limits.pubsubs_per_secret:
            raise WireError(
                found=f"more than {self._quota.pubsubs} pubsubs of one secret", expected="fewer"
            )
        self._quota.pubsubs += 1
        self._pubsub = peer.bus.pubsub(made.name, most=MAX_WAITING_MESSAGES)
        self._notifications = made.name == ANNOUNCEMENT_CHANNEL
        for event in ("subscribed", "unsubscribed"):
            self._pubsub.on(event, partial(self.emit, event))
        self._pubsub.on(
            "error", lambda error: self.emit("error", error_codec.error_event_text(error))
        )
        self._pubsub.on("message", self._on_message)
        self._waiting: deque[PubsubMessage] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._missed = 0

    # Only the name counts here
    def needed_verbs(self, name: str, method: ServedMethod, values: list[Any]) -> NeededVerbs:  # noqa: ARG002
        """Every peer may subscribe to notifications and receives those of queues it may use; other
        buses trust them, so only admins may send.
        """
        if not self._notifications:
            return method.need
        return NEEDS_ADMIN if name == "publish" else NEEDS_NOTHING

    async def detach_object(self) -> None:
        """Unsubscribe."""
        self._quota.pubsubs -= 1
        while self._waiting:
            self._pop_waiting()
        await self._pubsub.unsubscribe()

    async def subscribe(self, _: MethodCall) -> None:
        await self._pubsub.subscribe()

    async def unsubscribe(self, _: MethodCall) -> None:
        await self._pubsub.unsubscribe()

    async def publish(self, call: MethodCall) -> None:
        if not call.values or isinstance(call.values[0], DnodeCallbackRef):
            raise MessageRefused(reason="publish without a message; undefined cannot be published")
        await self._pubsub.publish(to_storable(call.values[0]))
        self.answer(call)

    def _on_message(self, message: PubsubMessage) -> None:
        """Send it, or keep it until there is room. It never waits: messages that wait in the bus
        may be many times as much.
        """
        if not self.peer.is_open or (self._notifications and not self._may_receive(message.text)):
            return
        began, turns = monotonic(), self._quota.turns
        is_short = len(message.value) <= MAX_SHORT_BYTES
        if (
            is_short
            and turns.is_due
            and not self._waiting
            and not self.peer.work.send_buffer.is_full
        ):
            self.emit("message", message.text)
            turns.charge(monotonic() - began)
            return
        missed = self._missed
        self._buffer_message(message)
        if self._missed and not missed:
            self.emit(
                "error",
                error_codec.error_event_text(
                    MessagesMissed(pubsub=self.name, dropped=self._missed)
                ),
            )
        if self._waiting and (self._sending is None or self._sending.done()):
            self._sending = self.peer.spawn(
                self._send_waiting(), f"sending messages of {self.name}"
            )

    def _buffer_message(self, message: PubsubMessage) -> None:
        """The oldest of ours give way, and where others have used up the room this one does."""
        work, size = self.peer.work, len(message.value) + MESSAGE_OVERHEAD_BYTES
        while self._waiting and (
            len(self._waiting) >= MAX_WAITING_MESSAGES
            or work.pubsub_bytes + size > MAX_WAITING_BYTES
        ):
            self._pop_waiting()
            self._missed += 1
        if self._quota.is_full or (
            work.pubsub_bytes and work.pubsub_bytes + size > MAX_WAITING_BYTES
        ):
            self._missed += 1
            return
        self._count_waiting(size)
        self._waiting.append(message)

    def _pop_waiting(self) -> PubsubMessage:
        message = self._waiting.popleft()
        self._count_waiting(-len(message.value) - MESSAGE_OVERHEAD_BYTES)
        return message

    def _count_waiting(self, size: int) -> None:
        self.peer.work.pubsub_bytes += size
        self._quota.count_bytes(size)

    async def _send_waiting(self) -> None:
        turns = self._quota.turns
        while self._waiting and await self.peer.work.send_buffer.wait_room():
            await turns.wait()
            if not self._waiting:
                return
            message, began = self._pop_waiting(), monotonic()
            if len(message.value) <= MAX_SHORT_BYTES:
                self.emit("message", message.text)
                turns.charge(monotonic() - began)
                continue
            try:
                tail = await self.encode_message(message.value, None)
            except MessageRefused as error:
                self.peer.send_error(None, error)
            else:
                await self.send_message(tail)

    def _may_receive(self, text: str) -> bool:
        """Whether a notification is about a queue that the peer may use."""
        try:
            key = json.loads(text)["key"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return False
        name = announced_name(key) if isinstance(key, str) else None
        return name is not None and self.peer.identity.has_right(
            RequiredRight(VERBS, "queue", name)
        )

    methods: ClassVar[dict[str, ServedMethod]] = {
        **EVENT_METHODS,
        "subscribe": ServedMethod(subscribe, NEEDS_BROWSE),
        "attach": ServedMethod(subscribe, NEEDS_BROWSE),
        "unsubscribe": ServedMethod(unsubscribe),
        "detach": ServedMethod(unsubscribe),
        "isSubscribed": ServedMethod(lambda self, call: self.answer(call, self._pubsub.subscribed)),
        "publish": ServedMethod(publish, NEEDS_PUSH),
    }


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
