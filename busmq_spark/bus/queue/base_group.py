"""The part that both kinds of groups of a queue share: registering, waiting for messages, listing,
moving and dropping.

async with bus.queue("orders") as orders, orders.group("billing") as group:
    async for batch in group.batches(most=1000):
        ...
        await group.ack(batch)
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from busmq_spark.arguments import show
from busmq_spark.bus.emitter import Handle
from busmq_spark.bus.handler_calls import BatchesInHand, call_outside_handler
from busmq_spark.bus.waiting import wait_at_most
from busmq_spark.errors import ConfigError, LinkLost, StateError
from busmq_spark.groups import shared_group as flows
from busmq_spark.queue.command_generators import Flow, T
from busmq_spark.reading import reader_subscriptions
from busmq_spark.redis_io.endpoint import retry_time_s
from busmq_spark.redis_io.lease_token import is_dead
from busmq_spark.redis_io.retry import LinkRetry, Pauses

if TYPE_CHECKING:
    from busmq_spark.bus.queue.local_queue import LocalQueue
    from busmq_spark.redis_io.pubsub_connection import PubSubConnection

GROUP_POLL_S = 1.0
"""Longest wait without looking: what another holder gives back publishes nothing."""


class BaseGroup(Handle, ABC):
    """A holder of a group. ``async with`` registers the group, which stays when it is left."""

    _is_left_by_bus = True
    """Whether the bus that ends leaves the group; else another object of the bus does."""

    def __init__(self, queue: LocalQueue, name: str, start: str | int) -> None:
        self.queue, self.name = queue, reader_subscriptions.check_name(name)
        check_start(start)
        self._start, self._wake = start, asyncio.Event()
        self._running = self._entered = False
        self._born = ""
        """The life of the queue that the group was registered in last."""
        self._lock = asyncio.Lock()
        """While messages are asked for, or given back."""
        self._leaving = asyncio.Lock()
        self._in_hand: BatchesInHand[Any] = BatchesInHand()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.queue.name!r}, {self.name!r})"

    async def __aenter__(self) -> Self:
        """Register the group, at its start; one that exists keeps its place. Raises QueueBusy where
        the name is of the other kind of group.
        """
        self.queue._need_attached(f"read as group {self.name!r} from")
        if self._entered:
            raise StateError(
                event="enter",
                what=f"group {self.name!r}",
                state="entered already",
                remedy="Make another with queue.group(…)",
            )
        self._running = self._entered = True
        try:
            await self._pubsub.subscribe(self.queue.keys.available, self._on_notification)
            async with self._lock:
                await self._register()
        except BaseException:
            self._running = self._entered = False
            self._pubsub.unsubscribe(self.queue.keys.available, self._on_notification)
            raise
        if self._is_left_by_bus:
            self.queue.bus._adopt(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave(error if isinstance(error, Exception) else None)

    async def stop(self) -> None:
        """End ``batches``, wait for handlers, and return messages that are not settled.

        The handlers of ``each``, and the bodies of loops over ``batches`` in other tasks or
        threads, keep their messages until they end. A handler of this group may call it; the call
        returns at once then.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        await self._leave(None)

    detach = stop

    async def finish(self) -> None:
        """Take no more messages, and wait for handlers and for bodies of loops."""
        self._running = False
        self._wake.set()
        if self._entered and not self._is_handling:
            await self._in_hand.wait_until_none(self._count_in_work, self)

    async def state(self) -> flows.GroupState:
        """Return the position and the lag of the group.

        Raises:
            ConfigError: There is no such group.
        """
        for each in await self.queue.groups():
            if each.name == self.name:
                return each
        raise ConfigError(
            reason=(
                f"queue {self.queue.name!r} has no group {self.name!r}; it is registered when it is"
                " entered"
            )
        )

    async def seek(self, where: str | int) -> int:
        """Move the group to another place, while it has no holder. Only stored messages can be read
        again.

        Args:
            where: ``earliest``, ``latest``, the last id that counts as read, a time, or ``-1000
                messages``.

        Returns:
            The last id that counts as read now.

        Raises:
            QueueBusy: The group has a holder.
            ConfigError: The place is not valid.
            TimeUnknown: The queue does not know that time.
        """
        return await self.queue.run(
            reader_subscriptions.seek(self.queue.keys, self.name, where, is_dead)
        )

    async def drop(self) -> bool:
        """Forget the group, so that no message stays stored for it.

        Returns:
            Whether there was such a group.

        Raises:
            QueueBusy: An ordered group has a holder.
        """
        return await self.queue.unsubscribe(self.name)

    async def wait_idle(self) -> None:
        """Wait until every message is settled.

        Raises:
            LinkLost: The server cannot be reached in time.
            StateError: A handler of this group calls it: its own message is not settled.
        """
        await self._wait_until(lambda found: found.idle)

    # -- for the two kinds -------------------------------------------------------------------------

    @abstractmethod
    async def _register(self) -> None:
        """Make the group, in the life that the queue has now, or join it."""

    @abstractmethod
    def _count_in_work(self) -> int:
        """Return how many messages handlers and bodies of loops have that are not the caller."""

    @abstractmethod
    async def _give_back_held(self, error: Exception | None) -> None:
        """Give back what is held; ``error`` is the error of the reader of the messages."""

    async def _leave(self, error: Exception | None) -> None:
        self._running = False
        self._wake.set()
        if self._is_handling:
            leaving = f"leaving group {self.name} of {self.queue.name}"
            call_outside_handler(lambda: self.queue.bus._spawn(self._leave(error), leaving))
            return
        async with self._leaving:  # the second caller waits for the first
            if self._entered:
                await self.finish()
                try:
                    async with self._lock:
                        await self._give_back_held(error)
                except (LinkLost, StateError):
                    pass  # leases end by themselves, also where the bus has ended
                finally:
                    self._entered = False
                    self.queue.bus.release(self)
                    with suppress(StateError):  # the bus has ended, with its connections
                        self._pubsub.unsubscribe(self.queue.keys.available, self._on_notification)

    def _need_entered(self, event: str, *, finishing: bool = False) -> None:
        """Raise StateError outside of the block. ``finishing``: a stop that waits is no end."""
        self.queue._need_attached(f"read as group {self.name!r} from")
        if not (self._entered if finishing else self._running):
            remedy = "Use it inside 'async with queue.group(…) as group:'"
            raise StateError(
                event=event,
                what=f"group {self.name!r} of queue {self.queue.name!r}",
                state="not entered, or stopped",
                remedy=remedy,
            )

    async def _wait_until(self, reached: Callable[[flows.GroupState], bool]) -> None:
        if self._is_handling:
            raise StateError(
                event="wait for",
                what=f"the messages of group {self.name!r}",
                state="waited for by one of its handlers",
                remedy="Let the handler return, and wait outside of it",
            )
        # The state is in Redis, which publishes no change of it
        while not reached(await self.state()):  # noqa: ASYNC110
            await asyncio.sleep(GROUP_POLL_S / 10)

    async def _run_with_retries(self, work: Callable[[bool], Awaitable[T]]) -> T:
        """Run it, again while a server may come back. The argument of ``work`` says whether it was
        begun before.
        """
        link = self.queue.bus.servers.takes[self.queue.server]
        retry, again = LinkRetry(asyncio.get_running_loop().time), False
        while True:
            try:
                return await work(again)
            except LinkLost as error:
                with retry.pausing(error, retry_time_s(link.endpoint, error)) as pause_s:
                    await asyncio.sleep(pause_s)
                again = True

    async def _run(self, flow: Flow[T]) -> T:
        """Run a flow once, on the link that no push waits for."""
        return await self.queue.bus.servers.takes[self.queue.server].run(flow)

    async def _run_unless_unreachable(
        self, work: Callable[[], Awaitable[T]], pauses: Pauses
    ) -> T | None:
        """The result; return None, after a pause, when the server is away."""
        try:
            found = await work()
        except LinkLost as error:
            self.queue._not_touched(error)
            await self._sleep_unless_woken(pauses.next_s())
            return None
        pauses.failures = 0
        return found

    async def _sleep_unless_woken(self, seconds: float) -> None:
        """Sleep, or until there may be something to read."""
        await wait_at_most(seconds, self._wake.wait)
        if self._running:
            self._wake.clear()

    def _on_notification(self, _: bytes | None) -> None:
        self._wake.set()

    @property
    def _log_names(self) -> tuple[str, str]:
        return self.queue.name, self.name

    @property
    def _pubsub(self) -> PubSubConnection:
        return self.queue.bus.servers.pubsub[self.queue.server]


def check_batch_size(most: object) -> None:
    """Raises ConfigError for what is no size of a batch."""
    if not isinstance(most, int) or most < 1:
        raise ConfigError(reason=f"most is {most!r}; expected a whole number of at least 1")


def check_start(start: object) -> None:
    """Raise ConfigError for a value that is neither text nor a whole number."""
    if type(start) not in (str, int):
        raise ConfigError(
            reason=f"start is {show(start)}; expected earliest, latest, an id, -10m, or a time"
        )
