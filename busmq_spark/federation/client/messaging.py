"""Channels and pubsubs of another bus.

A channel of another bus, with the methods of one of this bus (``bus/channel.py``). The server
has the queues and sends events, in order.

Rule 1. Events and messages are handed out in the order they came. A message that is not taken yet
        holds up what came after it.
Rule 2. The wire cannot stop the server: messages that the program has not taken are kept here.
        Messages not taken when the channel ends are lost, unless it is reliable.

A pubsub of another bus: subscriptions and handlers are those of ``bus/pubsub.py``, only the
messages come from a remote object.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from busmq_spark.bus.channel import BaseChannel, ChannelOptions, ConnectionState
from busmq_spark.bus.emitter import Handler
from busmq_spark.bus.pubsub import Pubsub
from busmq_spark.bus.queue.base_consumption import reliable_message
from busmq_spark.errors import BusError, ConfigError, FederationLost, QueueFull
from busmq_spark.federation.client import remote_object_connection
from busmq_spark.federation.client.remote_object_connection import error_from_event
from busmq_spark.federation.client.remote_reconnector import (
    RemoteObjectListener,
    RemotePushPipeline,
    RemoteReconnector,
    decode_utf8,
)
from busmq_spark.federation.npm_wire.channels import make_creation
from busmq_spark.objects.service_and_channel_messages import ChannelFrameKind
from busmq_spark.queue.message import Message, encode_value
from busmq_spark.queue.queue import check_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from busmq_spark.bus.context import BusContext
    from busmq_spark.federation.client.remote_object_connection import RemoteObjectConnection
    from busmq_spark.federation.client.web_socket_pool import WebSocketPool


READ_ENOUGH = "read enough"
"""The message of our server, instead of an event, when it has read ``max`` frames."""
EVENT_OF_NPM_EVENT = {
    "remote:connect": "remote_connect",
    "remote:disconnect": "remote_disconnect",
    "disconnect": "disconnect",
    "end": "end",
}
log = logging.getLogger("busmq_spark")


class RemoteChannel(BaseChannel, RemoteObjectListener):
    """A side of a channel on a federated bus. Names, results and errors are those of Channel, where
    the wire allows.

    Further events: ``reconnecting(error)`` and ``reconnected``; while the link is down the peer
    sees this side disconnected. Acks go with the connection: after it has ended there is nothing to
    ack on; connect again with ``last``.
    """

    events = (*BaseChannel.events, "reconnecting", "reconnected")

    def __init__(
        self, bus: BusContext, name: str, local: str, remote: str, pool: WebSocketPool
    ) -> None:
        super().__init__(bus, name, local, remote)
        self._pool = pool
        self._handle = self._make_handle(local, remote)
        self._pushes = self._make_push_pipeline()
        self._options: ChannelOptions | None = None
        self._failing: asyncio.Future[list[Any]] | None = None
        self._received: deque[Message | str] = deque()
        self._offered = asyncio.Event()
        self._iterated = self._there = self._advancing = self._full = False
        self._last = self._count = self._highest = 0

    def __repr__(self) -> str:
        return (
            f"RemoteChannel({self.name!r}, {self.local!r}, {self.remote!r},"
            f" {self._pool.target.url!r})"
        )

    # -- talking -----------------------------------------------------------------------------------

    def send(self, value: object) -> asyncio.Future[int]:
        """Send, like Channel.send. The future fails with FederationLost when the link broke and it
        is unknown whether the message is stored.
        """
        texts = (decode_utf8(encode_value(value)),)
        if not self.connected:
            return self.early.add("send on", lambda: self._pushes.add(texts, single=True))
        return self._pushes.add(texts, single=True)

    async def send_to(self, endpoint: str, value: object) -> int:
        """Send, like Channel.send_to."""
        found = await self._handle.call_for_result(
            "sendTo", endpoint, decode_utf8(encode_value(value)), again=False
        )
        return remote_object_connection.expect_first_number(found, "an id")

    async def ack(self, id: int) -> None:
        """Ack, like Channel.ack, while connected. The server does not answer: when the link breaks
        right after it, the message may come again.
        """
        check_id(id)
        if not self.connected or self._options is None:
            raise self._not_connected("ack on")
        if not self._options.reliable:
            raise self._not_reliable()
        id = min(id, self._last)  # the server has sent more than was handed over
        if id <= self._options.last:
            return
        self._options = replace(self._options, last=id)  # the state of a new remote object
        if self._handle.remote is not None:
            self._handle.remote.call_without_reply("ack", id)

    # -- receiving ---------------------------------------------------------------------------------

    async def next(self) -> Message:
        """The next message. Raises StopAsyncIteration when the connection has ended."""
        self._iterated = True
        while True:
            self._dispatch_received()
            if self._received and isinstance(self._received[0], Message):
                message = self._take_message()
                self._emit("message", message)
                self._dispatch_received_soon()
                return message
            if not self.connected or self._full:
                raise StopAsyncIteration
            self._offered.clear()
            await self._offered.wait()

    def _add_received(self, what: Message | str) -> None:
        self._received.append(what)
        self._dispatch_received()
        self._offered.set()

    def _dispatch_received(self) -> None:
        """Hand out what may be: events, and messages when handlers take them."""
        if self._advancing:
            return  # a handler asks
        self._advancing = True
        try:
            while self._received:
                head = self._received[0]
                if isinstance(head, Message):
                    if self._iterated or not self._has_handlers("message"):
                        break
                    self._emit("message", self._take_message())
                else:
                    self._received.popleft()
                    self._on_channel_event(head)
        finally:
            self._advancing = False
        self._offered.set()

    def _take_message(self) -> Message:
        """The message at the head, which is handed over."""
        message = self._received.popleft()
        assert isinstance(message, Message)
        if message.id > self._last:
            self._last, self._count = message.id, self._count + 1
        self._full = self._full or (self._options is not None and self._count == self._options.max)
        is_reliable = self._options is not None and self._options.reliable
        return reliable_message(message, self) if is_reliable else message

    def _dispatch_received_soon(self) -> None:
        """In a task of the bus: the caller gets its message before the events after it, and what a
        handler raises ends the bus' scope.
        """

        async def dispatch() -> None:
            self._dispatch_received()

        if self._received and not (self._iterated and isinstance(self._received[0], Message)):
            self.bus._spawn(dispatch(), f"delivering what came on channel {self.name}")

    def _on_channel_event(self, event: str) -> None:
        if event == READ_ENOUGH:
            self._full = True
        elif event in ("remote_connect", "remote_disconnect"):
            if self._there != (event == "remote_connect"):
                self._there = not self._there
                self._emit(event)
        elif event == "disconnect":
            if self.connected:
                self._on_left()
                self._emit(event)
        else:
            self._handle.close()
            self._emit(event)

    def _add_handler(self, event: str, handler: Handler, *, once: bool) -> Handler:
        added = super()._add_handler(event, handler, once=once)
        if event == "message" and self.connected:
            self._dispatch_received_soon()
        return added

    # -- inside ------------------------------------------------------------------------------------

    def on_remote_lost(self, why: BusError) -> None:
        """See remote_reconnector.RemoteObjectListener."""
        if self.connected:
            if self._options is not None and self._options.reliable:
                self._received = deque(
                    item for item in self._received if not isinstance(item, Message)
                )  # they come again
            self._emit("reconnecting", why)

    def on_remote_restored(self) -> None:
        """Connected again."""
        self._dispatch_received()  # messages that came before the event ``connect``
        self._emit("reconnected")

    def on_remote_failed(self, error: BusError) -> None:
        """Report an error that no caller awaits."""
        self._report(error)
        if not self._handle.keep_open and self.connected:
            self._on_left()
            self._handle.close()
            self._emit("disconnect")

    def _make_handle(self, local: str, remote: str) -> RemoteReconnector:
        return RemoteReconnector(
            self._pool,
            make_creation("channel", self.name, local, remote),
            self.bus._spawn,
            self,
            self._restore,
        )

    def _make_push_pipeline(self) -> RemotePushPipeline:
        return RemotePushPipeline(self._handle, "send", self.name, self.bus._spawn, lambda: None)

    async def _join(self, local: str, remote: str, options: ChannelOptions) -> None:
        if not options.wait:
            raise ConfigError(
                reason=(
                    "wait=False cannot be said over federation: a reliable reader waits for the one"
                    " before it to end"
                )
            )
        self._handle.close()
        self._handle = self._make_handle(local, remote)
        self._pushes, self._options, self._state = (
            self._make_push_pipeline(),
            options,
            ConnectionState.JOINING,
        )
        self._received.clear()
        self._last = self._count = self._highest = 0
        self._there = self._iterated = self._full = False
        try:
            await self._handle.wait_open()
        except BaseException:
            self._options, self._state = None, ConnectionState.AWAY
            self._handle.close()
            raise
        self._handle.keep_open = True
        self._dispatch_received_soon()

    async def _restore(self, remote: RemoteObjectConnection) -> None:
        options = self._options
        remote.on("error", self._on_remote_error)
        if options is None or self._state not in (
            ConnectionState.JOINING,
            ConnectionState.CONNECTED,
        ):  # one that only sends to a role
            return
        answered = self._failing = remote.next_event("connect")
        remote.on(
            "message",
            lambda text=None, id=None, *_: self._on_received(
                remote, remote_object_connection.make_message(text, id)
            ),
        )
        for theirs, ours in EVENT_OF_NPM_EVENT.items():
            remote.on(theirs, lambda *_, ours=ours: self._on_received(remote, ours))
        if options.max is not None:
            remote.on("consuming", lambda *_: self._on_received(remote, READ_ENOUGH))
        remote.call_without_reply("connect", self._npm_options(options))
        await answered
        self._failing = None
        asyncio.get_running_loop().call_soon(self._pushes.send_waiting)

    def _npm_options(self, options: ChannelOptions) -> dict[str, Any]:
        asked: dict[str, Any] = {"ttl": options.ttl_s, "maxsize": options.maxsize}
        asked["discoverable"] = options.discoverable
        if options.reliable:
            asked |= {"reliable": True, "last": options.last}
        if not options.remove:
            asked |= {"remove": False, "index": options.index}
        if options.max is not None:
            again = (
                options.reliable or not options.remove or options.max < 0
            )  # then all count again
            asked["max"] = options.max if again else max(0, options.max - self._count)
        return asked

    def _on_received(self, remote: RemoteObjectConnection, what: Message | str) -> None:
        """Messages may come before the event ``connect``; they are kept until then."""
        if isinstance(what, Message):
            options = self._options
            if what.id <= self._highest and options is not None and not options.remove:
                return  # a new link begins at the index again
            self._highest = what.id
        if remote is self._handle.remote and self._state in (
            ConnectionState.CONNECTED,
            ConnectionState.LEFT,
        ):
            self._add_received(what)
        else:
            self._received.append(what)

    def _on_remote_error(self, found: Any = None, *_: Any) -> None:
        error = error_from_event(found)
        # A full queue of the peer does not prevent a connection.
        if (
            self._failing is not None
            and not self._failing.done()
            and not isinstance(error, QueueFull)
        ):
            self._failing.set_exception(error)
        else:
            self._report(error)

    async def _leave(self, word: ChannelFrameKind | None) -> None:
        failed: BusError | None = None
        async with self._lock:
            if not self.connected:
                return
            await self._pushes.wait_flushed()
            if self._handle.remote is not None:
                await self._handle.end_and_wait(
                    "end" if word is ChannelFrameKind.END else "disconnect", "disconnect"
                )
            elif word is ChannelFrameKind.END:
                failed = FederationLost(
                    url=self._pool.target.url,
                    reason="the link is down, so the end of the channel was not sent to the peer",
                )
            was_disconnected = not self.connected  # with the server's event
            if not was_disconnected:
                self._on_left()
            self._handle.close()
        if not was_disconnected:
            self._emit("disconnect")
        if failed is not None:
            raise failed

    def _on_left(self) -> None:
        """This side has left. Its remote object still says that the channel has ended, if it
        has.
        """
        self._state = ConnectionState.LEFT
        left = sum(isinstance(item, Message) for item in self._received)
        if left and self._options is not None and not self._options.reliable:
            log.error(
                "channel %r: %d messages were not taken, and federation has no way back",
                self.name,
                left,
            )
        self._received = deque(item for item in self._received if item == "end")
        self._handle.keep_open = False
        self.bus.release(self)
        self._offered.set()

    @property
    def _reader(self) -> Self:
        if self._options is None:
            raise self._not_connected("read")
        return self


class RemotePubsub(Pubsub, RemoteObjectListener):
    """A pubsub on a federated bus. While the link is down no message is received; ``subscribed`` is
    emitted again when it is back.

    Further events: ``reconnecting(error)`` and ``reconnected``.
    """

    events = (*Pubsub.events, "reconnecting", "reconnected")

    def __init__(self, bus: BusContext, name: str, most: int, pool: WebSocketPool) -> None:
        super().__init__(bus, name, most)
        self._handle = RemoteReconnector(
            pool, make_creation("pubsub", name), bus._spawn, self, self._restore
        )
        self._on_message: Callable[[bytes | None], None] | None = None
        self._failing: asyncio.Future[list[Any]] | None = None

    def __repr__(self) -> str:
        return f"RemotePubsub({self.name!r}, {self._handle.url!r})"

    async def publish(self, value: object) -> None:
        """Publish, like Pubsub.publish. Raises FederationLost when the link broke and it is unknown
        whether the message was published.
        """
        await self._handle.call_for_result("publish", decode_utf8(encode_value(value)), again=False)

    async def _start_receiving(self, on_message: Callable[[bytes | None], None]) -> None:
        self._handle.close()  # a remote object that has only published
        self._on_message = on_message
        try:
            await self._handle.wait_open()
        except BaseException:
            self._stop_receiving(on_message)
            raise
        self._handle.keep_open = True

    # There is one
    def _stop_receiving(self, on_message: Callable[[bytes | None], None]) -> None:  # noqa: ARG002
        self._on_message = None
        self._handle.close()

    def on_remote_lost(self, why: BusError) -> None:
        """See remote_reconnector.RemoteObjectListener."""
        if self.subscribed:
            self._emit("reconnecting", why)

    def on_remote_restored(self) -> None:
        """Subscribed again."""
        if self._on_message is not None:
            self._on_message(None)
        self._emit("reconnected")

    def on_remote_failed(self, error: BusError) -> None:
        """Report an error that no caller awaits."""
        self._report(error)

    async def _restore(self, remote: RemoteObjectConnection) -> None:
        remote.on(
            "error", self._on_remote_error
        )  # first: an error event without a listener ends a Node server
        if (on_message := self._on_message) is None:
            return
        answered = self._failing = remote.next_event("subscribed")
        remote.on(
            "message",
            lambda text=None, *_: on_message(
                remote_object_connection.expect_text_as_bytes(text, "a message")
            ),
        )
        remote.call_without_reply("subscribe")
        await answered
        self._failing = None

    def _on_remote_error(self, found: Any = None, *_: Any) -> None:
        error = error_from_event(found)
        if self._failing is not None and not self._failing.done():
            self._failing.set_exception(error)
        else:
            self._report(error)
