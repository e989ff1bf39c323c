"""A channel for a peer (protocol chapter 3, 5.6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from busmq_spark.bus.channel import ChannelEvent, ChannelKeywords
from busmq_spark.errors import BusError, ConfigError, MessageRefused, QueueBusy
from busmq_spark.federation.npm_wire.dnode import DnodeCallbackRef
from busmq_spark.federation.serve.objects.base import (
    EVENT_METHODS,
    NEEDS_CONSUME,
    NEEDS_PUSH,
    MethodCall,
    ServedMethod,
    ServedObject,
    consume_keywords,
    to_storable,
    ttl_of,
    whole_number_option,
)
from busmq_spark.federation.serve.peer_work import TakeRoom

if TYPE_CHECKING:
    from busmq_spark.bus.channel import Channel
    from busmq_spark.federation.npm_wire.creation_message import ObjectCreationMessage
    from busmq_spark.federation.serve.peer_channel import PeerChannel

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
