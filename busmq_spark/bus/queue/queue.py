"""A queue as a live object: attached, kept alive, pushed to and consumed from (protocol 1.5 to
1.11).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from busmq_spark.arguments import check_flag, check_items, check_text, check_whole
from busmq_spark.bus.queue.consume import (
    ConsumeKeywords,
    ConsumeOptions,
    Consumption,
    ConsumptionRoom,
)
from busmq_spark.bus.queue.ordered_group import OrderedGroup
from busmq_spark.bus.queue.push import PendingPush, PushBatcher
from busmq_spark.bus.queue.retention_and_times import RetentionAndTimesMixin
from busmq_spark.bus.queue.shared_group import SharedGroup, SharedGroupKeywords, SharedGroupOptions
from busmq_spark.errors import BusError, ConfigError, QueueMissing, StateError
from busmq_spark.groups import shared_group as groups
from busmq_spark.option_parsing import from_call
from busmq_spark.queue import queue as flows
from busmq_spark.queue.command_generators import Flow, RedisCall, T
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import encode_value
from busmq_spark.queue.retention import MESSAGES_TAKEN_WARNING
from busmq_spark.reading import reader_subscriptions
from busmq_spark.redis_io.lease_token import is_dead
from busmq_spark.redis_io.pipelined_connection import OnReply
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.redis_io.translate import translate_redis_error
from busmq_spark.writing import mirror

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus
    from busmq_spark.bus.redis_server_links import RedisServerLinks

SHORT_TTL_S = 3600
"""A queue that lives for less is warned about when it is left with messages."""
SHORT_TTL_CHECK_TIMEOUT_S = 0.5
"""Longest wait for what that needs to know."""
log = logging.getLogger("busmq_spark")


class Queue(RetentionAndTimesMixin):
    """A queue of a bus. ``async with bus.queue("orders") as orders:`` attaches and detaches.

    Events: ``attaching``, ``attached(existed)``, ``detaching``, ``detached``, ``consuming(bool)``,
    ``message(message)``, ``deleted``, ``error(error)`` when the server is unreachable while no call
    waits for it (emitted once, until it is reachable again).
    """

    _consumption: Consumption | None

    def __init__(
        self, bus: Bus, name: str, home: int | None = None, cap: str | None = None
    ) -> None:
        """``home``: the index of the server on which it is created, of several; a ``home`` of None
        is the server that its name hashes to. ``cap``: core's rule.
        """
        super().__init__(bus, name)
        self.keys = QueueKeys(name, bus.options.cluster)
        self._home = None if home is None else check_whole("server", home)
        self._cap = cap
        self.leased = False
        """Whether this bus holds the lease of the queue's one reliable consumer."""
        self.room: ConsumptionRoom | None = None
        """Room that its consumptions ask for before they take messages."""
        self.server = 0
        """Index of the server that has the queue; known once attached."""
        self._attach_args = (flows.MIN_RECORD_TTL_S, 0)
        self._born = ""
        self._servers: RedisServerLinks | None = None
        self._unreachable = False
        self._push_pipeline = PushBatcher(self)

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    # -- life --------------------------------------------------------------------------------------

    async def _attach(self, ttl_s: int, maxsize: int, *, discoverable: bool) -> bool:
        async with self._lock:
            if self.attached:
                raise StateError(
                    event="attach",
                    what=f"queue {self.name!r}",
                    state="attached already",
                    remedy="Detach it first",
                )
            self._attach_args, self.handed = (ttl_s, maxsize), 0
            self._emit("attaching")
            existed = await self._join(discoverable)
            self.early.make()
            self.discoverable = discoverable
            self.bus.adopt(self)
            self.bus.keep_alive.add(self)
            if discoverable:
                await self.bus.keep_alive.announce([self])
        self._emit("attached", existed)
        return existed

    async def detach(self) -> None:
        """Stop consuming, wait for pushes under way, and let the ttl of the queue run.

        Nothing is deleted. A queue that is not attached is left alone. A failed push is in its own
        future.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        await self.early.let_begin()
        async with self._lock:
            if not self.attached:
                return
            self._emit("detaching")
            try:
                await self.stop()
                await self._push_pipeline.wait_flushed()
                await self._warn_if_short()
            finally:
                self.bus.keep_alive.remove(self)
                self.bus.release(self)
                self.ttl_s = 0
        self._emit("detached")

    async def delete(self) -> None:
        """Detach, and delete the queue with its messages. Other clients get no event.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        await self.detach()
        await self.run(flows.delete(self.keys))
        self._emit("deleted")

    # -- pushing -----------------------------------------------------------------------------------

    def push(self, value: object) -> asyncio.Future[int]:
        """Append a message. Messages are stored in the order of the calls, awaited or not.

        Awaiting the future is the back-pressure. If the connection breaks before the reply, it is
        unknown whether the message is stored.

        Args:
            value: Text and bytes are stored unchanged, every other value as JSON.

        Returns:
            A future of the id of the message. It fails with QueueFull or LinkLost.

        Raises:
            MessageRefused: The value cannot be stored.
            StateError: The queue is not attached.

        Example:
            id = await orders.push({"n": 1})
        """
        values = (encode_value(value),)
        if not self.ttl_s:
            return self.early.add("push to", lambda: self._push_pipeline.add(values, single=True))
        return self._push_pipeline.add(values, single=True)

    def push_many(self, values: Iterable[object]) -> asyncio.Future[list[int]]:
        """Append messages in order, in few round trips. Messages of other programs may come in
        between.

        Args:
            values: The messages, as for ``push``.

        Returns:
            A future of their ids. It fails with QueueFull; then all but the last
            ``details["left"]`` messages are stored.

        Raises:
            MessageRefused: A value cannot be stored; none is.
            StateError: The queue is not attached.
        """
        encoded = [encode_value(value) for value in check_items("values", values)]
        if not self.ttl_s:
            return self.early.add("push to", lambda: self._push_pipeline.add(encoded, single=False))
        return self._push_pipeline.add(encoded, single=False)

    def put(self, push: PendingPush[bytes]) -> None:
        """Append the values of a push, at least one; its methods are called for each chunk that is
        stored.
        """
        self._need_attached("push to")
        self._push_pipeline.put(push)

    def begin_push(self, values: Any, on_reply: OnReply) -> bool:
        """Send one chunk the quickest way; false when the link is down."""
        assert self._servers is not None
        return self._servers.commands[self.server].send_if_connected(
            next(flows.append(self.keys, values)),  # type: ignore[arg-type]  # one call
            on_reply,
        )

    def translate(self, error: BaseException | None) -> BusError:
        """An error of the link to our server, as one of ours."""
        assert self._servers is not None
        # Asked only after a failure
        return translate_redis_error(error, self._servers.commands[self.server].endpoint)  # type: ignore[arg-type]

    def begin(self, call: RedisCall) -> None:
        """Send a call without waiting for its reply: it may be lost."""
        assert self._servers is not None
        self._servers.commands[self.server].send_if_connected(call, lambda *_: None)

    @property
    def life(self) -> str:
        """The random name of the life of the queue that it was attached to last."""
        return self._born

    async def push_call(
        self, values: Any, append: Callable[[QueueKeys, Any], Flow[tuple[int, int]]] = flows.append
    ) -> tuple[int, int]:
        """Push one chunk, and return the first id and the number of stored messages. A queue that
        vanished (Redis lost its data, another client closed it) is created again.
        """
        link = self.bus.servers.commands[self.server]
        try:
            return await link.run(append(self.keys, values))
        except QueueMissing:
            log.warning("queue %r is gone and is made anew; its ids begin again at 1", self.name)
            await self._join(self.discoverable)
            return await link.run(append(self.keys, values))

    # -- consuming ---------------------------------------------------------------------------------

    def consume(self, **options: Unpack[ConsumeKeywords]) -> Consumption:
        """Return the messages, oldest first. They end after ``max`` messages, and at ``stop`` or
        ``detach``.

        Stopping returns messages that were not handed over to the queue. Without ``reliable``, a
        process that dies loses at most the prefetched messages. A queue object has one consumption:
        a new one ends the one before.

        Args:
            **options: ``max``: most messages. ``remove=False``: read from position ``index`` on and
                remove nothing. ``reliable=True``: keep each message until it is acked; messages up
                to the id ``last`` are acked at the start, and other messages without an ack come
                again. ``wait``: wait while another reliable consumer has the queue (the default).
                ``prefetch``: most messages taken at once (100).

        Raises:
            ConfigError: An option has a wrong name, type or value.
            QueueBusy: Another consumer is reliable, and ``wait`` is false.

        Example:
            async for message in orders.consume(reliable=True, max=3):
                print(message.json())
                await orders.ack(message.id)
        """
        self._need_attaching("consume from")
        checked = from_call(ConsumeOptions, "consume", options)
        before, self._consumption = self._consumption, Consumption(self, checked)
        self._consumption.follows = before
        return self._consumption

    async def ack(self, last: int) -> None:
        """Acknowledge every message up to an id that the reliable consumption of this object handed
        over.

        Args:
            last: Id of the last message.

        Raises:
            StateError: The consumption of this object is not reliable.
            LinkLost: The server cannot be reached in time.
        """
        flows.check_id(last)
        await self.ack_taken(min(last, self.handed))

    async def ack_taken(self, last: int) -> None:
        """Ack for a peer, which itself counts the messages it got, also those on an earlier
        connection.
        """
        ttl_s = self._need_attached("ack on")
        if self._consumption is None or not self._consumption.reliable:
            raise self._not_reliable(
                "Consume with reliable=True, or do not ack: the others are removed when they are"
                " taken"
            )
        await self.run(flows.ack(self.keys, last, ttl_s=ttl_s))
        log.debug("queue %r: acked up to id %d", self.name, last)

    # -- asking ------------------------------------------------------------------------------------

    async def count(self) -> int:
        """Return the number of messages that some reader has not acknowledged.

        Messages that are taken and not acked, and messages that :meth:`retain` keeps, are not
        counted.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        return await self.run(flows.count(self.keys))

    async def flush(self) -> bool:
        """Delete the stored messages. Ids go on, and messages that are taken and not acked stay.

        Returns:
            Whether there was a message.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        return await self.run(flows.flush(self.keys))

    async def exists(self) -> bool:
        """Return whether the queue exists: it was created, or announced by a federated bus, and has
        not expired.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        return await self.run(flows.exists(self.keys))

    async def ttl(self) -> int | None:
        """Return the stored ttl in seconds, or None if the queue does not exist.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        return _parse_number((await self.metadata()).get("ttl"))

    async def maxsize(self) -> int:
        """Return the most messages that the queue may hold; 0 means no limit.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        return _parse_number((await self.metadata()).get("maxsize")) or 0

    async def find(self) -> str | None:
        """Return the place of the queue: ``local``, the URL of the federated bus that announced it,
        or None when it is unknown.
        """
        return (await self.metadata()).get("source")

    async def metadata(self) -> dict[str, str]:
        """Return every metadata field; empty if the queue does not exist.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        return await self.run(flows.metadata(self.keys))

    async def set_metadata(self, fields: Mapping[str, object]) -> None:
        """Set metadata fields of your own.

        Args:
            fields: Names and values; values are stored as text.

        Raises:
            ConfigError: A field belongs to the bus.
            LinkLost: The server cannot be reached in time.
        """
        self._check_fields(fields)
        ttl_s = self._need_attached("set metadata of")
        await self.run(
            flows.set_metadata(
                self.keys, {name: str(value) for name, value in fields.items()}, ttl_s
            )
        )

    # -- subscriptions, as Spark queries with the option of that name have them --------------------

    async def subscribe(self, name: str, start: str | int = "earliest") -> int:
        """Register a subscription: from now on messages stay until it has acked them.

        Args:
            name: Name of the subscription. An existing one keeps its position.
            start: ``earliest``, ``latest``, or the last id that counts as read.

        Returns:
            The last acked id of the subscription.

        Raises:
            QueueBusy: A query without a subscription reads the queue.
            ConfigError: The name or the start is not valid.
        """
        self._need_attached("subscribe to")
        return await self.run(reader_subscriptions.register(self.keys, name, start, is_dead))

    async def unsubscribe(self, name: str) -> bool:
        """Forget a subscription, and drop messages that only it kept.

        Args:
            name: Name of the subscription.

        Returns:
            Whether it was there.

        Raises:
            QueueBusy: A query reads with it.
        """
        check_text("the name of a subscription", name)
        return await self.run(reader_subscriptions.unsubscribe(self.keys, name, is_dead))

    async def subscriptions(self) -> list[reader_subscriptions.QueueSubscriptionStatus]:
        """Return every subscription with its position, its number of kept messages, and the time
        since it read.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        return await self.run(reader_subscriptions.list_subscriptions(self.keys))

    # -- groups ------------------------------------------------------------------------------------

    @overload  # type: ignore[override]  # not with options that only the other kind has
    def group(
        self, name: str, *, start: str | int = ..., shared: Literal[False] = False
    ) -> OrderedGroup: ...
    @overload
    def group(
        self,
        name: str,
        *,
        start: str | int = ...,
        shared: Literal[True],
        **options: Unpack[SharedGroupKeywords],
    ) -> SharedGroup: ...
    def group(
        self, name: str, *, start: str | int = "earliest", shared: bool = False, **options: Any
    ) -> OrderedGroup | SharedGroup:
        """Return a named reader of this queue. Messages without its ack stay stored, also without a
        holder.

        An ordered group has one holder at a time, which reads in order and acks cumulatively. It is
        the subscription that a Spark query names. A shared group divides the messages among many
        holders, each with a lease.

        Args:
            name: Name of the group.
            start: Start of a new group, as for ``subscribe``.
            shared: Whether it is a shared group.
            **options: Of a shared group. ``lease_s``: seconds of a lease (30). ``tries``: most
                leases of a message (3). ``dead``: dead-letter queue (``<queue>.dead``). ``limit``:
                most messages in flight over all holders.

        Raises:
            ConfigError: An argument has a wrong type or value.

        Example:
            async with orders.group("mail", shared=True) as group:
                async for batch in group.batches():
                    await group.ack(batch)
        """
        check_flag("shared", shared)
        if unknown := sorted(set(options) - SharedGroupKeywords.__annotations__.keys()):
            raise ConfigError(
                reason=(
                    f"a group has no option {unknown[0]!r}; a shared one has"
                    f" {', '.join(SharedGroupKeywords.__annotations__)}"
                )
            )
        if shared:
            return SharedGroup(self, name, start, SharedGroupOptions(**options))
        if options:
            raise ConfigError(
                reason=(
                    f"{next(iter(options))} counts for a shared group only; add shared=True, or"
                    " leave it out"
                )
            )
        return OrderedGroup(self, name, start)

    async def groups(self) -> list[groups.GroupState]:
        """Return every group and subscription by name: its kind, its position, and its messages in
        flight.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        return await self.run(groups.list_groups(self.keys))

    async def promote(self) -> tuple[int, int]:
        """Turn a mirror into a queue of its own: it takes pushes, and its ids go on after the last
        copied one.

        Returns:
            The last copied id, and the last id that the origin is known to have given. Ids in
            between were not copied.

        Raises:
            StateError: The queue is no mirror.
            QueueMissing: The queue does not exist.
        """
        promoted, last, seen = await self.run(mirror.promote(self.keys))
        if not promoted:
            raise StateError(
                event="promote",
                what=f"queue {self.name!r}",
                state="no mirror",
                remedy="It takes pushes as it is",
            )
        return last, max(last, seen)

    # -- inside ------------------------------------------------------------------------------------

    async def server_ms(self) -> float:
        """Milliseconds since 1970 by the clock of the queue's server; by ours where the user may
        not ask.
        """
        return float(await self.run(flows.clock_ms(self.keys))) or await super().server_ms()

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow on the queue's server."""
        return await self.bus.servers.commands[await self._locate()].run(flow)

    @property
    def keys_to_touch(self) -> list[str]:
        """Further keys that must live as long as the queue."""
        return [] if self._consumption is None else self._consumption.keys_to_touch

    def on_touch_reply(self, status: int) -> None:
        """Handle the status of a keep-alive: 1 alive, 0 gone, -1 another holds the lease. The
        consumer then reads Redis itself: pub/sub may lose messages.
        """
        self._unreachable = False
        if self._consumption is not None:
            self._consumption.poll_now()
        if status == 0 and self.attached:
            self.bus.spawn(self._create_again(), f"making {self.name} anew")
        if status < 0 and self._consumption is not None:
            self._consumption.lease_lost()

    def not_touched(self, error: BusError) -> None:
        """The server could not be reached, in good time; keep-alive and consumer go on trying."""
        log.debug("queue %r was not touched: %s", self.name, error)
        if not self._unreachable and self._handlers.get("error"):
            self._emit("error", error)
        self._unreachable = True

    async def _warn_if_short(self) -> None:
        """Messages pushed here may expire unread: the queue has a shorter ttl, of the program that
        created it, than this program has asked for.
        """
        if (
            not self.pushed
            or self.ttl_s >= min(SHORT_TTL_S, self._attach_args[0])
            or self.name in self.bus.warned
        ):
            return
        with suppress(BusError, TimeoutError):
            async with asyncio.timeout(SHORT_TTL_CHECK_TIMEOUT_S):
                left = await self.count()
            if left:
                self.bus.warned.add(self.name)
                log.warning(
                    "queue %r is left with %d unread messages and a ttl of %d s, that of its"
                    " creation: if nothing attaches it for longer, they are gone. Stay attached"
                    " until they are read, or create the queue with a longer ttl: the first to"
                    " attach sets it, in Python 7 days",
                    *(self.name, left, self.ttl_s),
                )

    async def _create_again(self) -> None:
        try:
            await self._join(self.discoverable)
            log.warning("queue %r was gone and is made anew; its ids begin again at 1", self.name)
        except BusError as error:
            self.not_touched(error)  # the next touch finds it missing again

    async def _join(self, discoverable: bool) -> bool:
        self.server, self._servers = await self._locate(), self.bus.servers
        ttl_s, maxsize = self._attach_args
        flow = flows.attach(
            self.keys, new_token(), ttl_s=ttl_s, maxsize=maxsize, discover=discoverable
        )
        found = await self.bus.servers.commands[self.server].run(flow)
        if self._cap is not None:
            await self.bus.servers.commands[self.server].run(flows.set_cap(self.keys, self._cap))
        self.ttl_s = found.ttl_s
        self._set_life(found.born)
        if found.taken:
            log.warning(MESSAGES_TAKEN_WARNING, self.name)
        return found.existed

    async def check_life(self) -> None:
        """An id came that was handed over before: again, or in another life of the queue, in which
        nothing was handed over yet.
        """
        self._set_life((await self.metadata()).get("born", ""))

    def _set_life(self, born: str) -> None:
        if born != self._born:
            self._born, self.handed = born, 0

    async def _locate(self) -> int:
        return (
            self.server
            if self.attached
            else await self.bus.servers.locate(self.keys.metadata, self._home)
        )


def _parse_number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
