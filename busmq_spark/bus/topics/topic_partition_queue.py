"""A partition queue of a topic, and pushes that may have to wait until it is attached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Self

from busmq_spark.bus.queue.queue import Queue
from busmq_spark.errors import BusError
from busmq_spark.groups.topic import (
    PushedTopicMessageIds,
    TopicMessageId,
    partition_home,
    partition_queue,
)
from busmq_spark.queue.command_generators import T

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus
    from busmq_spark.bus.topics.topic import Topic


class TopicPartitionQueue(Queue):
    """A partition: an ordinary queue, created on a server in its turn."""

    def __init__(self, topic: Topic, partition: int) -> None:
        home = partition_home(partition, len(topic.bus.servers.commands))
        super().__init__(topic.bus, partition_queue(topic.name, partition), home)
        self.partition, self._topic, self._home_server = partition, topic, home
        self._ensuring = asyncio.Lock()
        self.waiting = 0
        """Pushes that wait until it is attached: later ones must not overtake them."""

    async def ensure_attached(self) -> Self:
        """Attach it, if that has not worked yet."""
        async with self._ensuring:
            if not self.attached:
                await self.attach(ttl_s=self._topic.ttl_s, maxsize=self._topic.maxsize)
        return self

    @property
    def reachable(self) -> bool:
        """Whether its server answers, as far as is known."""
        return self.bus.servers.ready[self.server if self.attached else self._home_server]

    def push_when_attached(self, push: Callable[[], asyncio.Future[T]]) -> asyncio.Future[T]:
        """Push now, or when it is attached, after the pushes that already wait for that."""
        if self.attached and not self.waiting:
            return push()
        self.waiting += 1

        async def later() -> T:
            try:
                await self.ensure_attached()
                pushed = push()
            finally:
                self.waiting -= 1
            return await pushed

        return spawn_for_result(self.bus, later(), f"pushing to {self.name}")


def spawn_for_result(bus: Bus, work: Coroutine[Any, Any, T], what: str) -> asyncio.Future[T]:
    """The result of work that is a task of the bus, whose errors are the caller's and end nothing
    else.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        try:
            found = await work
        except asyncio.CancelledError:
            future.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # the caller gets it
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(found)

    bus.spawn(run(), what)
    return future


def complete_push_many(
    pushes: Mapping[int, asyncio.Future[list[int]]],
    chosen: Sequence[int],
    outer: asyncio.Future[Sequence[TopicMessageId]],
) -> None:
    """All pushes have ended: the places of the values, of which each went to the partition chosen
    for it, or the first error.
    """
    failed = [
        inner for inner in pushes.values() if inner.cancelled() or inner.exception() is not None
    ]
    if not failed:
        _set_result_if_pending(
            outer,
            PushedTopicMessageIds(
                chosen, {which: inner.result() for which, inner in pushes.items()}
            ),
        )
        return
    ids = {
        which: repeat(None) if inner in failed else iter(inner.result())
        for which, inner in pushes.items()
    }
    found = [(which, next(ids[which])) for which in chosen]
    _set_push_error(
        outer, failed, [None if id is None else TopicMessageId(which, id) for which, id in found]
    )


def complete_push(
    partition: int, inner: asyncio.Future[int], outer: asyncio.Future[TopicMessageId]
) -> None:
    """Complete a single push in the same way."""
    if inner.cancelled() or inner.exception() is not None:
        _set_push_error(outer, [inner], [None])
    else:
        _set_result_if_pending(outer, TopicMessageId(partition, inner.result()))


def _set_result_if_pending(outer: asyncio.Future[T], result: T) -> None:
    if not outer.done():
        outer.set_result(result)


def _set_push_error(
    outer: asyncio.Future[Any],
    failed: Sequence[asyncio.Future[Any]],
    placed: list[TopicMessageId | None],
) -> None:
    errors = [
        error
        for inner in failed
        if not inner.cancelled() and (error := inner.exception()) is not None
    ]
    if outer.done():
        return
    if not errors:
        outer.cancel()
        return
    if isinstance(errors[0], BusError):
        errors[0].details["placed"] = placed
    outer.set_exception(errors[0])
