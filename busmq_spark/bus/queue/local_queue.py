"""A queue of this bus without its readers: attached, kept alive, pushed to and asked (protocol 1.5
to 1.11). Consumptions and groups work on it; ``queue.py`` adds the methods that make them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from busmq_spark.arguments import check_items, check_text, check_whole
from busmq_spark.bus.queue.base_queue import BaseQueue
from busmq_spark.bus.queue.push import PendingPush, PushBatcher
from busmq_spark.errors import (
    BusError,
    NotReplicated,
    QueueMissing,
    StateError,
    UnconfirmedLost,
)
from busmq_spark.groups import shared_group as groups
from busmq_spark.queue import queue as flows
from busmq_spark.queue import retention
from busmq_spark.queue.command_generators import Flow, RedisCall, T
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import encode_value
from busmq_spark.reading import reader_subscriptions, times_of_ids
from busmq_spark.reading.reader_operations import fingerprint
from busmq_spark.redis_io.async_link import OnReply
from busmq_spark.redis_io.durability import Unconfirmed
from busmq_spark.redis_io.lease_token import is_dead
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.redis_io.translate import translate_redis_error
from busmq_spark.starting_offsets import parse_moment
from busmq_spark.tracing import traced
from busmq_spark.writing import mirror

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext
    from busmq_spark.bus.queue.base_consumption import ConsumptionRoom
    from busmq_spark.bus.redis_server_links import RedisServerLinks
    from busmq_spark.options import Durability

MAX_UNCONFIRMED = 100_000
"""Messages without confirmation that a queue remembers for ``confirm``."""
SHORT_TTL_S = 3600
"""A queue that lives for less is warned about when it is left with messages."""
SHORT_TTL_CHECK_TIMEOUT_S = 0.5
"""Longest wait for what that needs to know."""
log = logging.getLogger("busmq_spark")


class LocalQueue(BaseQueue):
    """A queue of a bus, as its consumption, its groups and its keep-alive see it."""

    def __init__(
        self,
        bus: BusContext,
        name: str,
        home: int | None = None,
        cap: str | None = None,
        durability: Durability | None = None,
    ) -> None:
        """``home``: the index of the server on which it is created, of several; a ``home`` of None
        is the server that its name hashes to. ``cap``: core's rule. ``durability``: that of the bus
        by default.
        """
        super().__init__(bus, name)
        self.durability = bus.options.durable if durability is None else durability
        self._unconfirmed: dict[int, tuple[str, str]] = {}
        """Life and fingerprint of messages that were pushed and not confirmed, by id."""
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
        self._taken = False
        """Whether messages were taken since their time was noted."""
        self._noting: asyncio.Task[None] | None = None
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
            self.bus._adopt(self)
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
        stored = self._push_pipeline.add(values, single=True)
        return traced(stored, "busmq push", queue=self.name, messages=1)

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
        stored = self._push_pipeline.add(encoded, single=False)
        return traced(stored, "busmq push", queue=self.name, messages=len(encoded))

    def put(self, push: PendingPush[bytes]) -> None:
        """Append the values of a push, at least one; its methods are called for each chunk that is
        stored.
        """
        self._need_attached("push to")
        self._push_pipeline.put(push)

    def _begin_push(self, values: Any, on_reply: OnReply) -> bool:
        """Send one chunk the quickest way; false when the link is down, or the push must be
        confirmed.
        """
        if self.durability.on:
            return False
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

    async def _push_call(
        self, values: Any, append: Callable[[QueueKeys, Any], Flow[tuple[int, int]]] = flows.append
    ) -> tuple[int, int]:
        """Push one chunk, and return the first id and the number of stored messages. A queue that
        vanished (Redis lost its data, another client closed it) is created again.
        """
        try:
            return await self._append(values, append)
        except QueueMissing:
            log.warning("queue %r is gone and is made anew; its ids begin again at 1", self.name)
            await self._join(self.discoverable)
            return await self._append(values, append)

    async def confirm(self, first: int, last: int) -> None:
        """Wait again for the replicas after NotReplicated, and check that the messages are still
        stored: same ids, same content, same life of the queue.

        Args:
            first: Id of the first message, from the details of the error.
            last: Id of the last one.

        Raises:
            NotReplicated: Again too few servers have confirmed in time.
            UnconfirmedLost: Messages are not stored any more.
            StateError: This object has pushed no such messages that are not confirmed.

        Example:
            try:
                await orders.push({"n": 1})
            except NotReplicated as error:
                await orders.confirm(error.details["first"], error.details["last"])
        """
        check_whole("first", first, 1)
        check_whole("last", last, first)
        self._need_attached("confirm messages of")
        found = {id: self._unconfirmed[id] for id in self._unconfirmed if first <= id <= last}
        if not found:
            raise StateError(
                event="confirm",
                what=f"ids {first} to {last} of queue {self.name!r}",
                state="not waiting for it in this object",
                remedy="Call it on the object whose push failed, with the ids of its error",
            )
        await self._confirm(found)

    async def _append(
        self, values: Any, append: Callable[[QueueKeys, Any], Flow[tuple[int, int]]]
    ) -> tuple[int, int]:
        """Push one chunk, and wait until it is confirmed, if it must be."""
        servers, flow = self.bus.servers, append(self.keys, values)
        if not self.durability.on:
            return await servers.commands[self.server].run(flow)
        try:
            return await servers.durable(self.server, self.durability).run(flow)
        except (NotReplicated, Unconfirmed) as error:
            first, stored = error.replies[0]
            if stored < 0:
                raise QueueMissing(queue=self.name) from None
            if not stored:
                return first, 0
            found = {first + at: (self._born, fingerprint(values[at])) for at in range(stored)}
            self._remember_unconfirmed(found)
            if isinstance(error, Unconfirmed):
                await self._confirm_pushed(found)
                return first, stored
            raise error.about(queue=self.name, first=first, last=first + stored - 1) from None

    async def _confirm_pushed(self, found: Mapping[int, tuple[str, str]]) -> None:
        """Confirm messages of a push. An error of the second step is none of the push, which was
        executed: its caller must not repeat it.
        """
        try:
            await self._confirm(found)
        except (NotReplicated, UnconfirmedLost):
            raise
        except BusError as error:
            raise NotReplicated(
                queue=self.name,
                first=min(found),
                last=max(found),
                left=0,
                asked=self.durability.replicas or 1,
                received=0,
                timeout_ms=self.durability.timeout_ms,
                durability=self.durability.level,
                reason=error.code,  # a peer of a federation server is shown it
            ) from error

    async def _confirm(self, found: Mapping[int, tuple[str, str]]) -> None:
        first, last = min(found), max(found)
        born = found[last][0]
        marks = {id: mark for id, (_, mark) in found.items()}
        link = self.bus.servers.durable(self.server, self.durability)
        try:
            await link.run(flows.confirm(self.keys, born, marks))
        except NotReplicated as error:
            self._remember_unconfirmed(found)
            raise error.about(queue=self.name, first=first, last=last) from None
        except UnconfirmedLost:
            self._forget_unconfirmed(found)
            raise
        self._forget_unconfirmed(found)

    def _remember_unconfirmed(self, found: Mapping[int, tuple[str, str]]) -> None:
        self._unconfirmed.update(found)
        for id in list(self._unconfirmed)[:-MAX_UNCONFIRMED]:
            del self._unconfirmed[id]

    def _forget_unconfirmed(self, ids: Iterable[int]) -> None:
        for id in ids:
            self._unconfirmed.pop(id, None)

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

    # -- what is kept ------------------------------------------------------------------------------

    async def retain(
        self,
        age: str | int | timedelta | None = None,
        messages: int | None = None,
        bytes: str | int | None = None,  # noqa: A002  # as its users call it
    ) -> retention.Retention | None:
        """Set the limits up to which acknowledged messages are kept, so that a reader can go back.

        The limits hold for all readers, and for this life of the queue. Without a limit no
        acknowledged message is kept.

        Args:
            age: Longest age: ``7d``, seconds, or a timedelta.
            messages: Most messages.
            bytes: Most bytes: a number, or ``10g``.

        Returns:
            The limits that hold now.

        Raises:
            ConfigError: A limit has a wrong type or value.
            QueueBusy: A reliable consumer has messages without an ack.
        """
        limits = retention.parse_limits(age, messages, bytes)
        self._need_attached("retain messages of")
        found = await self.run(retention.set_retention(self.keys, limits))
        if found and found.age_s and found.age_s > self.ttl_s:
            text = (
                "queue %r keeps messages for %d s and has a ttl of %d s, that of its creation:"
                " without anybody attached it lives for no longer"
            )
            log.warning(text, self.name, found.age_s, self.ttl_s)
        return found

    async def retention(self) -> retention.Retention | None:
        """Return the limits that ``retain`` has set, or None.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        return await self.run(retention.read_retention(self.keys))

    # -- its clock ---------------------------------------------------------------------------------

    async def id_at(self, time: int | str | datetime) -> int:
        """Return the last id that existed before the second of a time.

        Args:
            time: Milliseconds since 1970 (a negative number: before now), a datetime with a time
                zone, ISO 8601 with an offset, or ``-10m``.

        Raises:
            TimeUnknown: The queue has messages from before its first recorded time.
            ConfigError: The value is no time, or a time to come.
        """
        return await self.run(times_of_ids.id_at(self.keys, parse_moment(time).ms))

    async def ms_of(self, id: int) -> int | None:
        """Return a time at which a message was stored, in milliseconds since 1970, or None if
        unknown.

        Args:
            id: Id of the message.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        return await self.run(times_of_ids.ms_of(self.keys, check_whole("id", id, 1)))

    def _note_time(self) -> None:
        """Messages were taken: their time is noted, once a second at most, since pushes of peers
        note nothing.
        """
        self._taken = True
        if self._noting is None and self.keys.has_clock:
            with suppress(StateError):  # the bus is about to end
                self._noting = self.bus._spawn(self._note_times(), f"noting times of {self.name}")

    # -- inside ------------------------------------------------------------------------------------

    async def _server_ms(self) -> float:
        """Milliseconds since 1970 by the clock of the queue's server; by ours where the user may
        not ask.
        """
        return float(await self.run(flows.clock_ms(self.keys))) or await super()._server_ms()

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow on the queue's server."""
        return await self.bus.servers.commands[await self._locate()].run(flow)

    @property
    def _keys_to_touch(self) -> list[str]:
        """Further keys that must live as long as the queue."""
        return []

    def _on_touch_reply(self, status: int) -> None:
        """Handle the status of a keep-alive: 1 alive, 0 gone, -1 another holds the lease."""
        self._unreachable = False
        if status == 0 and self.attached:
            self.bus._spawn(self._create_again(), f"making {self.name} anew")

    def _not_touched(self, error: BusError) -> None:
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
            self._not_touched(error)  # the next touch finds it missing again

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
            log.warning(retention.MESSAGES_TAKEN_WARNING, self.name)
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

    async def _note_times(self) -> None:
        try:
            while self._taken:
                self._taken = False
                with suppress(BusError):
                    await self.run(times_of_ids.note_times_if_allowed([self.keys]))
                await asyncio.sleep(times_of_ids.NOTE_TIME_INTERVAL_S)
        finally:
            self._noting = None


def _parse_number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
