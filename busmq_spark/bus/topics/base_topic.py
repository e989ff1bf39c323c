"""A topic without its readers: its attached partition queues, and pushes that a key sends to one
of them. Members and jobs work on it; ``topic.py`` adds the methods that make them.

Rule 1. Partitions do not wait for each other: one whose server is away is attached when that is
        back, and others are pushed to meanwhile.
Rule 2. A topic that has grown is noticed by a hint, else within a minute, and at once by a group
        (bus/topics/member.py).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from typing import TYPE_CHECKING, Any, Self

from busmq_spark.arguments import check_items, check_whole, show
from busmq_spark.bus.context import bus_not_open_error
from busmq_spark.bus.emitter import Handle
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.waiting import wait_at_most
from busmq_spark.errors import BusError, ConfigError, LinkLost, StateError
from busmq_spark.groups import topic as flows
from busmq_spark.groups.shared_group import group_settings
from busmq_spark.groups.topic import (
    GroupLag,
    PushedTopicMessageIds,
    TopicMessageId,
    lags_by_group,
    partition_home,
    partition_of,
    partition_queue,
    partitions_of,
)
from busmq_spark.queue.command_generators import Flow, T
from busmq_spark.queue.keys import TopicKeys, server_index
from busmq_spark.reading.reader_subscriptions import register
from busmq_spark.reading.readers import read_readers
from busmq_spark.redis_io.queue_location import new_token

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext

GROWTH_CHECK_S, ATTACH_RETRY_S = 60.0, 1.0
"""Seconds between two checks for growth of the topic, and between two tries of a server that was
away.
"""
log = logging.getLogger("busmq_spark")


class BaseTopic(Handle):
    """A topic of a bus, as its members and its jobs see it."""

    def __init__(
        self, bus: BusContext, name: str, partitions: int | None, ttl_s: int, maxsize: int
    ) -> None:
        self.bus, self.name = bus, flows.check_topic(name)
        self.ttl_s, self.maxsize = check_whole("ttl_s", ttl_s, 1), check_whole("maxsize", maxsize)
        self.keys = TopicKeys(name, bus.options.cluster)
        self.queues: list[TopicPartitionQueue] = []
        """The partition queues, by partition; known once attached."""
        self._wanted = None if partitions is None else flows.check_partitions(partitions)
        self._known = flows.TopicState(0, "")
        self._keeping: asyncio.Task[None] | None = None
        self._hint = asyncio.Event()
        self.on_growth: list[asyncio.Event] = []
        """Set whenever new partitions are known."""
        self._lock = asyncio.Lock()
        self._turn, self._waiting = -1, 0

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    async def __aenter__(self) -> Self:
        await self.attach()
        return self

    # -- life --------------------------------------------------------------------------------------

    async def attach(self) -> None:
        """Create the topic, or join an existing one with its number of partitions, and attach its
        queues.

        Partitions whose server is away are attached when it is back.

        Raises:
            TopicMissing: There is no such topic, and no number of partitions was given.
            LinkLost: The server that knows of the topic is away.
        """
        async with self._lock:
            if self.attached:
                return
            known = await self.run(flows.open_topic(self.keys, self._wanted, new_token()))
            if self._wanted not in (None, known.partitions):
                log.info(
                    "topic %r has %d partitions, not %d: a topic keeps the number it was made with"
                    " until it grows",
                    *(self.name, known.partitions, self._wanted),
                )
            self.bus._adopt(self)
            try:
                self._update_known(known)
                await self._attach_all([queue for queue in self.queues if queue.reachable])
                await self.bus.servers.pubsub[self._server].subscribe(
                    self.keys.changed_channel, self._on_notification
                )
                self._keeping = self.bus._spawn(self._keep_attached(), f"keeping topic {self.name}")
            except BaseException:
                await self._close()
                raise

    async def detach(self) -> None:
        """Wait for pushes under way, and let the ttl of the partition queues run. A topic that is
        not attached is left alone.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        async with self._lock:
            if self.attached:
                await self._close()

    @property
    def attached(self) -> bool:
        """Whether this object is attached."""
        return self._keeping is not None

    @property
    def partitions(self) -> int:
        """Return the number of partitions, as far as it is known here; 0 until the topic is
        attached.
        """
        return self._known.partitions

    async def grow(self, partitions: int) -> int:
        """Add partitions. Keys get other partitions then.

        Args:
            partitions: Number of partitions, at least the present one.

        Returns:
            The present number of partitions.

        Raises:
            TopicShrinks: The topic has more partitions.
            BusError: A queue cannot be created; then the topic has not grown.
        """
        flows.check_partitions(partitions)
        await self.attach()
        if partitions > self.partitions:
            await self._prepare(
                [TopicPartitionQueue(self, i) for i in range(self.partitions, partitions)]
            )
        self._update_known(await self.run(flows.grow_topic(self.keys, partitions)))
        await self._attach_all([queue for queue in self.queues if queue.reachable])
        return self.partitions

    # -- pushing -----------------------------------------------------------------------------------

    def push(
        self, value: object, *, key: bytes | str | None = None, partition: int | None = None
    ) -> asyncio.Future[TopicMessageId]:
        """Append a message. Messages of one partition are stored in the order of the calls.

        Args:
            value: As for ``Queue.push``.
            key: Key that chooses the partition. Without a key, partitions take turns.
            partition: Number of the partition, instead of a key.

        Returns:
            A future of the partition and the id. It fails with QueueFull or LinkLost.

        Raises:
            MessageRefused: The value cannot be stored.
            ConfigError: There is no such partition.
        """
        return self._push_when_attached(lambda: self._push(value, key, partition))

    def _push(
        self, value: object, key: bytes | str | None, partition: int | None
    ) -> asyncio.Future[TopicMessageId]:
        queue = self.queues[self._choose([key], partition)[0]]
        outer: asyncio.Future[TopicMessageId] = asyncio.get_running_loop().create_future()
        inner = queue.push_when_attached(lambda: queue.push(value))
        inner.add_done_callback(lambda _: complete_push(queue.partition, inner, outer))
        return outer

    def push_many(
        self,
        values: Iterable[object],
        *,
        keys: Iterable[bytes | str | None] | None = None,
        partition: int | None = None,
    ) -> asyncio.Future[Sequence[TopicMessageId]]:
        """Append messages, each with its key. Messages of one key stay in order.

        Values without a key go to one partition, and the values of the next call to the next one.
        If a partition fails, the others are stored: ``details["placed"]`` of the error has None for
        each message that is not known to be stored.

        Args:
            values: The messages.
            keys: A key, or None, for each message.
            partition: Number of the partition of all messages, instead of keys.

        Returns:
            A future of the partitions and ids, in the order of the values.

        Raises:
            MessageRefused: A value cannot be stored.
            ConfigError: There is no such partition, or not one key for each value.
        """
        batch = check_items("values", values)
        of = [None] * len(batch) if keys is None else check_items("keys", keys)
        if len(of) != len(batch):
            raise ConfigError(
                reason=(
                    f"there are {len(batch)} values and {len(of)} keys; expected one key, or None,"
                    " for each value"
                )
            )
        return self._push_when_attached(lambda: self._push_many(batch, of, partition))

    def _push_many(
        self, batch: list[object], keys: Sequence[bytes | str | None], partition: int | None
    ) -> asyncio.Future[Sequence[TopicMessageId]]:
        chosen = self._choose(keys, partition)
        values: dict[int, list[object]] = {}
        if chosen and chosen.count(chosen[0]) == len(chosen):
            values[chosen[0]] = batch
        else:
            values = defaultdict(list)
            for which, value in zip(chosen, batch, strict=True):
                values[which].append(value)
        outer: asyncio.Future[Sequence[TopicMessageId]] = asyncio.get_running_loop().create_future()
        pushes = {which: self._send_many(self.queues[which], its) for which, its in values.items()}
        left = len(pushes)

        def on_end(_: object) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                complete_push_many(pushes, chosen, outer)

        for inner in pushes.values():
            inner.add_done_callback(on_end)
        if not pushes:
            outer.set_result([])
        return outer

    def partition_of(self, key: bytes | str) -> int:
        """Return the partition of a key, with the present number of partitions.

        Args:
            key: The key.

        Raises:
            StateError: The topic is not attached.
        """
        if not self.partitions:
            raise StateError(
                event="ask",
                what=f"topic {self.name!r} for a partition",
                state="not attached",
                remedy="Use it inside 'async with'",
            )
        if not isinstance(key, str | bytes):
            raise ConfigError(reason=f"the key is {show(key)}; expected text or bytes")
        return partition_of(key, self.partitions)

    # -- groups ------------------------------------------------------------------------------------

    async def groups(self) -> list[GroupLag]:
        """Return each group with its lag over all partitions, and its number of read partitions.

        Raises:
            LinkLost: A server is away.
        """
        await self.attach()
        found = await asyncio.gather(
            *(queue.run(read_readers([queue.keys])) for queue in self.queues)
        )
        return lags_by_group([each for part in found for each in part])

    async def seek(self, group: str, where: str | int) -> list[int]:
        """Move a group to another place in every partition, while it has no members.

        Args:
            group: Name of the group.
            where: As for the start of a group.

        Returns:
            For each partition, the last id that counts as read now.

        Raises:
            QueueBusy: A member reads the named partition; partitions before it are moved.
            ConfigError: The place is not valid.
            TimeUnknown: A partition does not know that time.
        """
        await self.attach()
        return [await queue.group(flows.check_group(group)).seek(where) for queue in self.queues]

    async def drop(self, group: str) -> bool:
        """Forget a group, so that no message stays stored for it.

        Args:
            group: Name of the group.

        Returns:
            Whether there was such a group.

        Raises:
            QueueBusy: A member reads.
        """
        await self.attach()
        return any([await queue.unsubscribe(flows.check_group(group)) for queue in self.queues])

    # -- inside ------------------------------------------------------------------------------------

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow on the server that knows of the topic."""
        return await self.bus.servers.commands[self._server].run(flow)

    def _update_known(self, found: flows.TopicState) -> None:
        """Take over the present number of partitions: new partitions are attached."""
        self._known = flows.TopicState(max(found.partitions, self.partitions), found.born)
        if len(self.queues) < self.partitions:
            self.queues += [
                TopicPartitionQueue(self, i) for i in range(len(self.queues), self.partitions)
            ]
            for hint in (self._hint, *self.on_growth):
                hint.set()

    @property
    def _last_known(self) -> flows.TopicState:
        """The topic as it was seen last."""
        return self._known

    @property
    def _server(self) -> int:
        return server_index(self.keys.base, len(self.bus.servers.commands))

    @property
    def server(self) -> int:
        """Index of the server that knows of the topic, of several independent ones."""
        return self._server

    async def _close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
        self.bus.servers.pubsub[self._server].unsubscribe(
            self.keys.changed_channel, self._on_notification
        )
        self.bus.release(self)
        for queue in self.queues:
            await queue.detach()

    async def _attach_all(self, queues: Sequence[TopicPartitionQueue]) -> None:
        """Attach queues, beside each other. Queues whose server goes away meanwhile are left to the
        keeper.
        """
        for outcome in await asyncio.gather(
            *(queue.ensure_attached() for queue in queues), return_exceptions=True
        ):
            if isinstance(outcome, BaseException) and not isinstance(outcome, LinkLost):
                raise outcome

    async def _prepare(self, queues: Sequence[TopicPartitionQueue]) -> None:
        """Create queues that are to be partitions, with every group of the others: before the first
        push to them, or trim.
        """
        first = self.queues[0]
        shared = {each.name: each.shared for each in await first.groups()}
        settings = {
            name: await first.run(group_settings(first.keys, name)) if shared[name] else None
            for name in shared
        }
        try:
            await asyncio.gather(*(queue.ensure_attached() for queue in queues))
            for queue in queues:
                for name, own in settings.items():
                    await queue.run(register(queue.keys, name, shared=own))
        finally:
            await asyncio.gather(*(queue.detach() for queue in queues))

    async def _keep_attached(self) -> None:
        while True:
            missing = [queue for queue in self.queues if not queue.attached]
            await wait_at_most(ATTACH_RETRY_S if missing else GROWTH_CHECK_S, self._hint.wait)
            self._hint.clear()
            with suppress(
                BusError
            ):  # of a server that is away: later; a push or a group raises any other error
                await self._attach_all(
                    [queue for queue in self.queues if not queue.attached and queue.reachable]
                )
            if not missing:
                with suppress(BusError):
                    self._update_known(await self.run(flows.keep_alive(self.keys, self._known)))

    def _on_notification(self, payload: bytes | None) -> None:
        if not payload:
            self._hint.set()

    def _push_when_attached(self, push: Callable[[], asyncio.Future[T]]) -> asyncio.Future[T]:
        """Push now, or when the topic is attached, after the pushes that already wait for that."""
        if self.attached and not self._waiting:
            return push()
        self._waiting += 1

        async def later() -> T:
            try:
                await self.attach()
                pushed = push()
            finally:
                self._waiting -= 1
            return await pushed

        return spawn_for_result(self.bus, later(), f"pushing to topic {self.name}")

    def _choose(self, keys: Sequence[bytes | str | None], partition: int | None) -> list[int]:
        """The partition of each message."""
        if partition is not None:
            return [flows.check_partition(partition, self.name, self.partitions)] * len(keys)
        try:
            return partitions_of(keys, self.partitions, self._next_turn() if None in keys else 0)
        except TypeError:
            wrong = next((key for key in keys if type(key) not in (bytes, str, type(None))), None)
            raise ConfigError(reason=f"a key is {wrong!r}; expected text, bytes, or None") from None

    def _next_turn(self) -> int:
        """The next partition whose server answers; the first one at random, so that many producers
        do not go in step.
        """
        if self._turn < 0:
            self._turn = random.randrange(self.partitions)  # noqa: S311  # not a secret
        for _ in self.queues:
            self._turn = (self._turn + 1) % self.partitions
            if self.queues[self._turn].reachable:
                break
        return self._turn

    @staticmethod
    def _send_many(queue: TopicPartitionQueue, values: list[object]) -> asyncio.Future[list[int]]:
        return queue.push_when_attached(lambda: queue.push_many(values))


class TopicPartitionQueue(Queue):
    """A partition: an ordinary queue, created on a server in its turn."""

    def __init__(self, topic: BaseTopic, partition: int) -> None:
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


def spawn_for_result(bus: BusContext, work: Coroutine[Any, Any, T], what: str) -> asyncio.Future[T]:
    """The result of work that is a task of the bus, whose errors are the caller's and end nothing
    else.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        try:
            found = await work
        except Exception as error:  # noqa: BLE001  # the caller gets it
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(found)

    def on_end(task: asyncio.Task[None]) -> None:
        """Fail where the bus has cancelled the task, begun or not: no task of the caller is."""
        if task.cancelled() and not future.done():
            future.set_exception(bus_not_open_error())

    bus._spawn(run(), what).add_done_callback(on_end)
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
