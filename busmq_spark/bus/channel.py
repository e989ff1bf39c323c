"""A channel: two peers that talk to each other through two queues, each at its own time (protocol
chapter 3).

async with await bus.channel("chat").listen() as channel:  # peer: connect()
    channel.send("hello")
    async for message in channel:
        print(message.text)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, cast, get_args

from busmq_spark.arguments import check_text
from busmq_spark.bus.channel_inbox import ChannelInbox
from busmq_spark.bus.early_calls import EarlyCalls
from busmq_spark.bus.emitter import Emitter, Handler, LinkEvent
from busmq_spark.bus.handle import Handle
from busmq_spark.bus.queue.base_queue import DEFAULT_QUEUE_TTL_S
from busmq_spark.bus.queue.consume import ConsumeKeywords, ConsumeOptions
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.errors import BusError, QueueFull, StateError
from busmq_spark.objects.channel_frames import ChannelFrameKind, encode_frame
from busmq_spark.option_parsing import from_call
from busmq_spark.queue.keys import channel_queue, check_name
from busmq_spark.queue.message import Message, encode_value

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus
    from busmq_spark.bus.queue.consume import ConsumptionRoom


ConnectionState = Enum("ConnectionState", "AWAY JOINING CONNECTED LEAVING LEFT")
"""The states of one side of a channel. Over federation only: JOINING, a remote object is to
connect; LEFT, it may still say that the channel has ended.
"""


ChannelEvent = Literal[
    "connect", "disconnect", "remote_connect", "remote_disconnect", "message", "end", "error"
]


class ChannelKeywords(TypedDict, total=False):
    """The options of ``connect`` and ``listen``; see ChannelOptions."""

    ttl_s: int
    maxsize: int
    discoverable: bool
    max: int | None
    remove: bool
    reliable: bool
    last: int
    index: int
    wait: bool
    prefetch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelOptions(ConsumeOptions):
    """``ttl_s``, ``maxsize``, ``discoverable`` as for Queue.attach, others as for Queue.consume."""

    ttl_s: int = DEFAULT_QUEUE_TTL_S
    maxsize: int = 0
    discoverable: bool = False

    def consume_keywords(self) -> ConsumeKeywords:
        """The options of the consumption."""
        found = {row.name: getattr(self, row.name) for row in fields(ConsumeOptions)}
        return cast("ConsumeKeywords", found)


@dataclass(frozen=True, slots=True)
class _Connection:
    incoming: Queue
    outgoing: Queue
    inbox: ChannelInbox


class BaseChannel(Handle, Emitter[ChannelEvent | LinkEvent]):
    """The part that one side of a local channel and of a federated one
    (``federation/client/channel.py``) share: its roles and its life.
    """

    events: tuple[ChannelEvent | LinkEvent, ...] = get_args(ChannelEvent)

    def __init__(self, bus: Bus, name: str, local: str, remote: str) -> None:
        super().__init__(bus.spawn)
        self.bus, self.name = bus, check_name("channel", name)
        self.local, self.remote = check_text("local", local), check_text("remote", remote)
        self._state = ConnectionState.AWAY
        self._lock = asyncio.Lock()
        self.early = EarlyCalls(self._not_connected)
        """Calls made before it is connected."""

    def connect(self, **options: Unpack[ChannelKeywords]) -> Coroutine[Any, Any, Self]:
        """Read what is sent to ``local`` and send to ``remote``. Returns the channel, for
        ``async with await channel.connect(...)``.

        Options are those of Queue.attach, with npm's ttl of 30 s, and of Queue.consume. ``max``
        and ``index`` count frames: messages, and the words that a side has come or gone. After
        ``max`` frames reading ends; the channel stays connected. With ``remove=False`` the end of
        a channel is read again, too. Messages sent before this has ended are kept, in their order.

        ``reliable=True`` keeps each message until it is acked; at the start everything up to the id
        ``last`` is acked, and the rest comes again. Only one reader at a time may be reliable; with
        ``wait`` (default true) connecting waits for the other to end, else it raises QueueBusy.
        """
        checked = from_call(ChannelOptions, "connect", options)
        return self.early.begin(lambda: self._open(self.local, self.remote, checked))

    def listen(self, **options: Unpack[ChannelKeywords]) -> Coroutine[Any, Any, Self]:
        """Connect with the roles swapped: a peer that made the same channel and connects is the
        other side. The object keeps its roles.
        """
        checked = from_call(ChannelOptions, "listen", options)
        return self.early.begin(lambda: self._open(self.remote, self.local, checked))

    async def disconnect(self) -> None:
        """Send the peer a last frame and leave; the channel stays, with what is stored for us. No
        error when not connected.
        """
        await self.early.let_begin()
        await self._leave(ChannelFrameKind.LEAVING)

    async def end(self) -> None:
        """Leave and end the channel for the peer, too. Raises when the frame for the peer could not
        be sent; this side has left then, too.
        """
        await self.early.let_begin()
        await self._leave(ChannelFrameKind.END)

    attach, detach = connect, disconnect

    async def __aenter__(self) -> Self:
        return self if self.connected else await self.connect()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.disconnect()

    def __aiter__(self) -> ChannelMessages:
        return self.messages()

    def messages(self) -> ChannelMessages:
        """The messages, as an iterator of its own; several share them, each message going to
        one.
        """
        return ChannelMessages(self)

    @property
    def connected(self) -> bool:
        """Whether this side is connected; the peer may be away."""
        return self._state is ConnectionState.CONNECTED

    async def _open(self, local: str, remote: str, options: ChannelOptions) -> Self:
        async with self._lock:
            if self._state in (ConnectionState.CONNECTED, ConnectionState.LEAVING):
                raise StateError(
                    event="connect",
                    what=f"channel {self.name!r}",
                    state="connected already",
                    remedy="Disconnect it first",
                )
            await self._join(local, remote, options)
            self._state = ConnectionState.CONNECTED
            self.bus.adopt(self)
            self.early.make()
        self._emit("connect")
        return self

    async def _join(self, local: str, remote: str, options: ChannelOptions) -> None:
        raise NotImplementedError

    @property
    def _reader(self) -> Any:
        """Return the object whose ``next`` returns messages. Raises StateError before the first
        connection.
        """
        raise NotImplementedError

    async def _leave(self, word: ChannelFrameKind | None) -> None:
        raise NotImplementedError

    def _not_connected(self, what: str) -> StateError:
        return StateError(
            event=what,
            what=f"channel {self.name!r}",
            state="not connected",
            remedy="Call connect() or listen() first",
        )

    def _not_reliable(self) -> StateError:
        remedy = (
            "Connect with reliable=True, or do not ack: the others are removed when they are taken"
        )
        return StateError(
            event="ack on", what=f"channel {self.name!r}", state="not reliable", remedy=remedy
        )


class Channel(BaseChannel):
    """A side of a channel. Messages for a side that is disconnected stay in its queue, for the ttl
    of the queue.

    Events, with npm's name where it differs: ``connect``, ``disconnect``, ``remote_connect``
    (``remote:connect``), ``remote_disconnect`` (``remote:disconnect``), ``message(message)``,
    ``end``, ``error(error)``. A peer that is killed emits no disconnect.

    Messages are taken with ``async for message in channel``, or by handlers of ``message`` while no
    iteration has begun; handlers are also called for what an iteration takes. A message not taken
    holds up everything after it: a program that only sends adds a handler that does nothing.
    """

    def __init__(self, bus: Bus, name: str, local: str, remote: str) -> None:
        super().__init__(bus, name, local, remote)
        self.room: ConsumptionRoom | None = None
        """Room that is asked for before messages are taken."""
        self._connection: _Connection | None = None
        """The present connection, or the last one: its messages may still be acked."""

    def __repr__(self) -> str:
        return f"Channel({self.name!r}, {self.local!r}, {self.remote!r})"

    # -- sending -----------------------------------------------------------------------------------

    def send(self, value: object) -> asyncio.Future[int]:
        """Send to the peer; the result is the id, once stored. Values, order and errors as for
        Queue.push.
        """
        frame = encode_frame(ChannelFrameKind.MESSAGE, encode_value(value))
        if self._connection is None or not self.connected:
            return self.early.add("send on", lambda: self._outgoing.push(frame))
        return self._connection.outgoing.push(frame)

    @property
    def _outgoing(self) -> Queue:
        if self._connection is None:
            raise self._not_connected("send on")
        return self._connection.outgoing

    async def send_to(self, endpoint: str, value: object) -> int:
        """Send to the reader of the role ``endpoint``, connected now or later; the result is the
        id. Needs no connection.
        """
        message = encode_frame(ChannelFrameKind.MESSAGE, encode_value(value))
        queue = Queue(self.bus, channel_queue(endpoint, self.name))
        await queue.attach(ttl_s=DEFAULT_QUEUE_TTL_S)
        try:
            return await queue.push(message)
        finally:
            await queue.detach()

    async def ack(self, id: int) -> None:
        """Acknowledge every message up to this id that a reliable connection has handed over: the
        present one, or the one that ended last.
        """
        if self._connection is None:
            raise self._not_connected("ack on")
        if not self._connection.inbox.reliable:
            raise self._not_reliable()
        await self._connection.inbox.ack(id)

    # -- inside ------------------------------------------------------------------------------------

    async def _join(self, local: str, remote: str, options: ChannelOptions) -> None:
        incoming, outgoing = (
            Queue(self.bus, channel_queue(local, self.name)),
            Queue(self.bus, channel_queue(remote, self.name)),
        )
        incoming.room = self.room
        try:
            for queue in (incoming, outgoing):
                found = options.discoverable
                await queue.attach(ttl_s=options.ttl_s, maxsize=options.maxsize, discoverable=found)
            inbox = await self._start_consuming(incoming, options)
            await self._announce(outgoing)
        except BaseException:
            with suppress(BusError):
                try:
                    await incoming.detach()
                # Also when that is cancelled once more, as the call of a federated peer that has
                # gone may be
                finally:
                    await outgoing.detach()
            raise
        self._connection = _Connection(incoming, outgoing, inbox)
        self.bus.spawn(inbox.run(), f"reading channel {self.name}")

    async def _start_consuming(self, incoming: Queue, options: ChannelOptions) -> ChannelInbox:
        consumption = incoming.consume(**options.consume_keywords())
        await consumption.begin()
        return ChannelInbox(self, incoming, consumption, reliable=options.reliable)

    async def _announce(self, outgoing: Queue) -> None:
        try:
            await outgoing.push(encode_frame(ChannelFrameKind.HERE))
        except QueueFull as error:
            self._report(
                error
            )  # the peer has much to read before it would learn of us; we read all the same

    async def _leave(self, word: ChannelFrameKind | None) -> None:
        """Disconnect, with a last word to the peer. A failure does not keep this side from
        leaving.
        """
        failed: list[BusError] = []
        async with self._lock:
            if self._state is ConnectionState.AWAY or (connection := self._connection) is None:
                return
            was_leaving, self._state = (
                self._state is ConnectionState.LEAVING,
                ConnectionState.LEAVING,
            )  # leaving already: cancelled on the way
            steps = [connection.incoming.detach, connection.outgoing.detach]
            if word is not None and not was_leaving:
                # After reading has ended: the peer replies HERE, and that frame is for the next one
                # to connect in this role.
                steps.insert(1, lambda: _push_farewell(connection.outgoing, word))
            for step in steps:
                try:
                    await step()
                except BusError as error:
                    failed.append(error)
            connection.inbox.wake()
            self._state = ConnectionState.AWAY
            self.bus.release(self)
        self._emit("disconnect")
        if failed and word is ChannelFrameKind.END:
            raise failed[0]
        for trouble in failed:
            self._report(trouble)

    async def _send_control(self, kind: ChannelFrameKind) -> None:
        """Send a control frame unless we are leaving; failing is an event, since no call waits for
        it.
        """
        if self._connection is not None and self.connected:
            try:
                await self._connection.outgoing.push(encode_frame(kind))
            except BusError as error:
                self._report(error)

    @property
    def _reader(self) -> ChannelInbox:
        if self._connection is None:
            raise self._not_connected("read")
        return self._connection.inbox

    def _add_handler(self, event: str, handler: Handler, *, once: bool) -> Handler:
        added = super()._add_handler(event, handler, once=once)
        if self._connection is not None:
            self._connection.inbox.wake()
        return added


class ChannelMessages:
    """The messages of a channel. Ends when its side has disconnected, or has read ``max`` frames.

    Cancelling a wait for the next one loses none.
    """

    def __init__(self, channel: BaseChannel) -> None:
        self._channel = channel

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if not self._channel.connected and self._channel.early.opening:
            await self._channel.early.wait_open("read")
        found: Message = await self._channel._reader.next()
        return found

    async def take(self) -> tuple[Message, Callable[[], None]]:
        """The next message, and what to call once it has arrived: for each message, in their order.
        Messages that have not arrived when this side disconnects go back to their places. Raises
        StopAsyncIteration at the end.
        """
        found: tuple[Message, Callable[[], None]] = await self._channel._reader.take()
        return found


async def _push_farewell(queue: Queue, word: ChannelFrameKind) -> None:
    await queue.push(encode_frame(word))
