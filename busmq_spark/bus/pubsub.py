"""Publish and subscribe: a subscriber receives what is published while it is subscribed; nothing is
stored (protocol 4.1).

    async with bus.pubsub("news") as news:
        await news.publish({"n": 1})
        async for message in news:
            print(message.json())

Rule 1. Receiving never waits for a listener. Messages for a slow listener wait here, up to ``most``
        messages and 64 MB; then the oldest are dropped, counted in ``dropped`` and reported once.
Rule 2. An object is a listener: its handlers of ``message`` get everything, and so does its loop.
        Two loops over one object share its messages: each message goes to one of them.
Rule 3. A subscription outlives lost links and fail-overs; messages that are published while the
        link is down are not received.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from busmq_spark.arguments import check_whole
from busmq_spark.bus.emitter import Emitter, Handle, LinkEvent
from busmq_spark.bus.waiting import DropOldestBuffer, EarlyCalls
from busmq_spark.errors import MessagesMissed, StateError
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import check_name, pubsub_channel
from busmq_spark.queue.message import PubsubMessage, encode_value

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext

PubsubEvent = Literal["subscribed", "unsubscribed", "message", "error"]
MAX_BUFFERED_MESSAGES = 10_000
MAX_BUFFERED_BYTES = 64 * 1024 * 1024


class Pubsub(Handle, Emitter[PubsubEvent | LinkEvent]):
    """A listener and publisher of a channel. ``async with`` subscribes and unsubscribes; publishing
    needs neither.

    Events: ``subscribed`` (again when the link had broken), ``unsubscribed``, ``message(message)``,
    ``error(error)`` with MessagesMissed at the first message dropped. A handler of
    ``message`` that is a coroutine function is awaited before the next message.
    """

    events: tuple[PubsubEvent | LinkEvent, ...] = get_args(PubsubEvent)

    def __init__(self, bus: BusContext, name: str, most: int = MAX_BUFFERED_MESSAGES) -> None:
        super().__init__(bus._spawn)
        check_whole("most", most, 1)
        self.bus, self.name, self.channel = bus, check_name("pubsub", name), pubsub_channel(name)
        self.most = most
        """The most messages that may wait for a slow listener."""
        self._subscription: _Subscription | None = None
        self._lock = asyncio.Lock()
        self._dropped = 0
        self.early = EarlyCalls(self._not_subscribed)
        """Calls made before it is subscribed."""

    def __repr__(self) -> str:
        return f"Pubsub({self.name!r})"

    async def __aenter__(self) -> Self:
        await self.subscribe()
        return self

    @property
    def subscribed(self) -> bool:
        """Whether it listens, be the link up or down."""
        return self._subscription is not None

    @property
    def dropped(self) -> int:
        """Messages that were received and dropped, since handlers or the loop were too slow for
        those before.
        """
        return self._dropped + (0 if self._subscription is None else self._subscription.dropped)

    async def publish(self, value: object) -> None:
        """Send to every subscriber, this one too. Text and bytes travel as they are, everything
        else as JSON.

        Raises LinkLost when the connection broke before the reply: whether the message was
        published is unknown, and it is not published again.
        """
        await self.bus.servers.commands[0].execute(
            command("PUBLISH", self.channel, encode_value(value), idempotent=False)
        )

    def subscribe(self) -> Coroutine[Any, Any, None]:
        """Subscribe: messages published after this returns are received.

        Waits while Redis is unreachable; no error when subscribed already.
        """
        return self.early.begin(self._subscribe)

    async def _subscribe(self) -> None:
        async with self._lock:
            if self._subscription is not None:
                return
            subscription = _Subscription(self, self.most)
            await self._start_receiving(subscription.on_message)
            self._subscription = subscription
            self.bus._adopt(self)
            subscription.task = self.bus._spawn(
                subscription.call_handlers(), f"handlers of pubsub {self.name}"
            )
        self._emit("subscribed")

    async def unsubscribe(self) -> None:
        """Unsubscribe. Messages received and not taken yet are dropped, and the loop ends. No error
        when not subscribed.
        """
        await self.early.let_begin()
        async with self._lock:
            subscription, self._subscription = self._subscription, None
            if subscription is None:
                return
            self._dropped += subscription.dropped
            self._stop_receiving(subscription.on_message)
            self.bus.release(self)
        await (
            subscription.end()
        )  # outside of the lock: a running handler may call unsubscribe(), too
        self._emit("unsubscribed")

    async def detach(self) -> None:
        """Unsubscribe: every object of a bus has ``detach``."""
        await self.unsubscribe()

    def __aiter__(self) -> AsyncIterator[PubsubMessage]:
        """The messages received from the subscription until its end."""
        if self._subscription is not None:
            return aiter(self._subscription)
        if self.early.opening:
            return self._iterate_when_subscribed()
        raise self._not_subscribed("listen to")

    async def _iterate_when_subscribed(self) -> AsyncIterator[PubsubMessage]:
        await self.early.wait_open("listen to")
        async for message in self:
            yield message

    def _not_subscribed(self, event: str) -> StateError:
        remedy = "Call subscribe() first, or use 'async with'"
        what = f"pubsub {self.name!r}"
        return StateError(event=event, what=what, state="not subscribed", remedy=remedy)

    async def _start_receiving(self, on_message: Callable[[bytes | None], None]) -> None:
        """Call ``on_message`` with every message, and with None when subscribed again."""
        await self.bus.servers.pubsub[0].subscribe(self.channel, on_message)

    def _stop_receiving(self, on_message: Callable[[bytes | None], None]) -> None:
        self.bus.servers.pubsub[0].unsubscribe(self.channel, on_message)


class _Subscription:
    """A subscription: the messages received, on their way to handlers and to the loop."""

    def __init__(self, owner: Pubsub, most: int) -> None:
        self.task: asyncio.Task[None] | None = None
        self._owner = owner
        self._for_handlers, self._for_loop = (
            DropOldestBuffer(most, MAX_BUFFERED_BYTES),
            DropOldestBuffer(most, MAX_BUFFERED_BYTES),
        )
        self._wake_handlers, self._wake_loop = asyncio.Event(), asyncio.Event()
        self._looping = self._ended = self._again = self._reported = False

    @property
    def dropped(self) -> int:
        return self._for_handlers.dropped + self._for_loop.dropped

    def on_message(self, payload: bytes | None) -> None:
        """Called by the connection, which must not wait and must not fail. ``payload`` is None
        after a new subscription.
        """
        if payload is None:
            self._again = True
            self._wake_handlers.set()
            return
        handled = self._owner._has_handlers("message")
        out = 0
        if handled:
            out += self._for_handlers.put(payload)
            self._wake_handlers.set()
        if (
            self._looping or not handled
        ):  # kept for a loop that may begin later, unless a handler took it
            out += self._for_loop.put(payload)
            self._wake_loop.set()
        if out:
            self._wake_handlers.set()

    async def call_handlers(self) -> None:
        """Call the handlers, one message after the other."""
        owner = self._owner
        while not self._ended:
            await self._wake_handlers.wait()
            self._wake_handlers.clear()
            if self._again:
                self._again = False
                owner._emit("subscribed")
            while self._for_handlers and not self._ended:
                await owner._emit_and_wait("message", PubsubMessage(self._for_handlers.take()))
            if self.dropped and not self._reported:
                self._reported = True
                owner._report(MessagesMissed(pubsub=owner.name, dropped=self.dropped))

    def __aiter__(self) -> Self:
        self._looping = True
        return self

    async def __anext__(self) -> PubsubMessage:
        """A class and not a generator: a timeout around one step must not end the iteration."""
        while not self._ended:
            if self._for_loop:
                return PubsubMessage(self._for_loop.take())
            self._wake_loop.clear()
            await self._wake_loop.wait()
        raise StopAsyncIteration

    async def end(self) -> None:
        """Waits for a handler under way, unless it is the one that asks."""
        self._ended = True
        self._for_handlers.clear()
        self._for_loop.clear()
        self._wake_loop.set()
        self._wake_handlers.set()
        if self.task is not None and self.task is not asyncio.current_task():
            await asyncio.wait([self.task])
