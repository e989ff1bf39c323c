"""A pubsub for a peer (protocol 4.1, 5.6), above all the notifications that every npm client opens
first (5.8).
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from busmq_spark.errors import MessageRefused, MessagesMissed, WireError
from busmq_spark.federation import error_codec
from busmq_spark.federation.bounded_json import MAX_SHORT_BYTES
from busmq_spark.federation.gate.grants import VERBS
from busmq_spark.federation.gate.rights import RequiredRight
from busmq_spark.federation.npm_wire.dnode import DnodeCallbackRef
from busmq_spark.federation.serve.objects.base import (
    EVENT_METHODS,
    NEEDS_ADMIN,
    NEEDS_BROWSE,
    NEEDS_NOTHING,
    NEEDS_PUSH,
    MethodCall,
    NeededVerbs,
    ServedMethod,
    ServedObject,
    to_storable,
)
from busmq_spark.queue.keys import ANNOUNCEMENT_CHANNEL, announced_name

if TYPE_CHECKING:
    from busmq_spark.federation.npm_wire.creation_message import ObjectCreationMessage
    from busmq_spark.federation.serve.peer_channel import PeerChannel
    from busmq_spark.queue.message import PubsubMessage

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
