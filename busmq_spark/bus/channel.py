"""A channel: two peers that talk to each other through two queues, each at its own time (protocol
chapter 3).

async with await bus.channel("chat").listen() as channel:  # peer: connect()
    channel.send("hello")
    async for message in channel:
        print(message.text)

Rules of the reading side (ChannelInbox):
Rule 1. Frames are handled in order. A message that is not taken yet holds up the frames after it.
Rule 2. A message is taken by an iteration once one has begun, else by handlers of ``message``.
        Messages not taken go back to the queue at the end.
Rule 3. A control frame is acked as soon as every message before it is.
Rule 4. A message that a federation server takes for a peer counts as taken once it has left for the
        peer; before that it goes back, too, with the control frames after it. So nothing more is
        read from Redis, and the channel does not end, while one is under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, cast, get_args

from busmq_spark.arguments import check_text
from busmq_spark.bus.emitter import Emitter, Handle, Handler, LinkEvent
from busmq_spark.bus.queue.base_consumption import (
    ConsumeKeywords,
    ConsumeOptions,
    reliable_message,
)
from busmq_spark.bus.queue.base_queue import DEFAULT_QUEUE_TTL_S
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.waiting import EarlyCalls
from busmq_spark.errors import BusError, ProtocolError, QueueFull, StateError
from busmq_spark.objects.service_and_channel_messages import (
    ChannelAckTracker,
    ChannelFrameKind,
    carries_application_message,
    encode_frame,
    frame_body,
    frame_kind,
)
from busmq_spark.option_parsing import from_call
from busmq_spark.queue import queue as flows
from busmq_spark.queue.keys import channel_queue, check_name
from busmq_spark.queue.message import Message, encode_value

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext
    from busmq_spark.bus.queue.base_consumption import ConsumptionRoom
    from busmq_spark.bus.queue.consume import Consumption


ConnectionState = Enum("ConnectionState", "AWAY JOINING CONNECTED LEAVING LEFT")
"""The states of one side of a channel. Over federation only: JOINING, a remote object is to
connect; LEFT, it may still say that the channel has ended.
"""

log = logging.getLogger("busmq_spark")


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
    (``federation/client/messaging.py``) share: its roles and its life.
    """

    events: tuple[ChannelEvent | LinkEvent, ...] = get_args(ChannelEvent)

    def __init__(self, bus: BusContext, name: str, local: str, remote: str) -> None:
        super().__init__(bus._spawn)
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
            self.bus._adopt(self)
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

    def __init__(self, bus: BusContext, name: str, local: str, remote: str) -> None:
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
        self.bus._spawn(inbox.run(), f"reading channel {self.name}")

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


class ChannelInbox:
    """The reading side of a channel, from connect to disconnect; acks work also afterwards."""

    def __init__(
        self, channel: Channel, queue: Queue, consumption: Consumption, *, reliable: bool
    ) -> None:
        self._channel, self._queue, self._consumption = channel, queue, consumption
        self.reliable = reliable
        self._ttl_s = queue.ttl_s
        self._acks = ChannelAckTracker()
        self._remote = False
        self._iterated = self._over = self._reacting = False
        self._offered, self._changed = asyncio.Event(), asyncio.Event()
        self._failed: BusError | None = None

    async def run(self) -> None:
        """Handle frames until the consumption ends."""
        try:
            while True:
                if self._consumption.head is None:
                    await self._wait_until_all_handed_over()
                await self._consumption.wait_filled()
                if (
                    await self._offer_messages()
                    and (message := self._consumption.next_stored()) is not None
                ):
                    self._reacting = True  # later messages are handed out afterwards
                    await self._handle_control_frame(message)
                    self._reacting = False
        except StopAsyncIteration:
            return
        except BusError as error:
            self._failed = error
            self._channel._report(error)
            await self._wait_until_all_handed_over()
            await self._channel._leave(None)
        finally:
            self._over = True
            self._offered.set()

    async def next(self) -> Message:
        """The next message. Cancelling it loses none. Raises StopAsyncIteration when the connection
        has ended.
        """
        return await self._wait_for_message(arrived=True)

    async def take(self) -> tuple[Message, Callable[[], None]]:
        """The next message as of ``next``, and what to call once it has arrived: for each message,
        in their order.
        """
        message = await self._wait_for_message(arrived=False)
        return message, partial(self._on_handed_over, message.id)

    def wake(self) -> None:
        """Something has changed: a handler was added, or the consumption has ended."""
        self._changed.set()

    async def ack(self, id: int) -> None:
        """The application acks its messages up to this id."""
        self._acks.ack(id)
        await self._send_due_acks()

    # -- messages ----------------------------------------------------------------------------------

    async def _wait_for_message(self, *, arrived: bool) -> Message:
        self._iterated = True
        while (message := self._pop_application_message(arrived=arrived)) is None:
            if self._over:
                raise self._failed or StopAsyncIteration
            self._offered.clear()
            await self._offered.wait()
        return message

    def _on_handed_over(self, id: int) -> None:
        self._consumption.on_handed_over(id)
        self._changed.set()

    async def _wait_until_all_handed_over(self) -> None:
        """Returns early when the connection ends."""
        while self._consumption.under_way and not self._consumption.is_stopping:
            self._changed.clear()
            await self._changed.wait()

    async def _offer_messages(self) -> bool:
        """Let the messages at the head be taken; True when a control frame is there."""
        if (head := self._consumption.head) is None:
            return False
        if not carries_application_message(head):
            return True
        if not self._iterated and self._channel._has_handlers("message"):
            self._pop_application_message()
            return False
        self._changed.clear()
        self._offered.set()
        await self._changed.wait()
        return False

    def _pop_application_message(self, *, arrived: bool = True) -> Message | None:
        """Hand over the message at the head, if there is one."""
        if not self._is_application_message_next:
            return None
        if self._consumption.is_stopping:
            self._changed.set()  # ``run`` finds out why
            return None
        message = frame_body(self._consumption.pop_head(arrived=arrived))
        if self.reliable:
            self._acks.on_handed_over(message.id, waits=True)
            message = reliable_message(message, self)
        if not self._is_application_message_next:
            self._changed.set()
        self._channel._emit("message", message)
        return message

    @property
    def _is_application_message_next(self) -> bool:
        head = self._consumption.head
        return head is not None and not self._reacting and carries_application_message(head)

    # -- control frames ----------------------------------------------------------------------------

    async def _handle_control_frame(self, message: Message) -> None:
        self._acks.on_handed_over(message.id, waits=False)
        kind = None
        try:
            kind = frame_kind(message, self._queue.name)
        except ProtocolError as error:
            self._channel._report(error)
        if kind is ChannelFrameKind.LEAVING:
            await self._channel._send_control(
                ChannelFrameKind.HERE
            )  # the peer that connects next learns that this side is connected
        try:
            await self._send_due_acks()
        except BusError as error:
            self._channel._report(error)  # the next ack covers this one
        if kind is not None:
            await self._apply_control_frame(kind)

    async def _apply_control_frame(self, kind: ChannelFrameKind) -> None:
        if kind is ChannelFrameKind.END:
            await self._wait_until_all_handed_over()
            await self._channel._leave(None)
            self._channel._emit("end")
        elif self._remote != (kind is ChannelFrameKind.HERE):
            self._remote = kind is ChannelFrameKind.HERE
            self._channel._emit("remote_connect" if self._remote else "remote_disconnect")

    async def _send_due_acks(self) -> None:
        """Send due acks to Redis; a failed ack is due again the next time."""
        while self.reliable and (due := self._acks.id_to_ack):
            await self._queue.run(flows.ack(self._queue.keys, due, ttl_s=self._ttl_s))
            self._acks.on_acked(due)
            log.debug("queue %r: acked up to id %d", self._queue.name, due)
