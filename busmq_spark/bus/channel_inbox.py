"""Incoming messages of one connection of a channel.

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
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from busmq_spark.errors import BusError, ProtocolError
from busmq_spark.objects.channel_frames import (
    ChannelAckTracker,
    ChannelFrameKind,
    carries_application_message,
    frame_body,
    frame_kind,
)
from busmq_spark.queue import queue as flows
from busmq_spark.queue.message import Message

if TYPE_CHECKING:
    from busmq_spark.bus.channel import Channel
    from busmq_spark.bus.queue.consume import Consumption
    from busmq_spark.bus.queue.queue import Queue

log = logging.getLogger("busmq_spark")


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
        if not self._iterated and self._channel.has_handlers("message"):
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
