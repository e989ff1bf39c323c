"""Events, which go to every queue that is subscribed to their keys, and commands, which go to one
queue with one group.

    async with Bus("redis://localhost") as bus:
        await bus.subscribe(["user.*"], into="emails")
        receipt = await bus.publish(["user.signup"], {"user": 7})
        print(receipt.destinations)  # ('emails',)
        await bus.send("invoices", {"order": 8})

Rule 1. The table of subscriptions is at one server: with several, at the one that its key hashes
        to. Its version is asked for each event, so a subscription counts for every event that is
        published after it.
Rule 2. Nothing is pushed twice by one call. If a server breaks off before its reply, the queue
        counts as missing, and the error says so.
Rule 3. A queue that peers of a federation server alone have subscribed fails no call by being full
        or gone: the receipt names it, and it counts for no ``require``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from busmq_spark.arguments import check_items
from busmq_spark.errors import (
    BusError,
    ConfigError,
    NotReplicated,
    PublishIncomplete,
    QueueMissing,
    TooFewDestinations,
)
from busmq_spark.queue.command_generators import Flow, RedisCall, Step, T, run_async
from busmq_spark.queue.keys import EVENT_SUBSCRIPTIONS_KEY, QueueKeys, server_index
from busmq_spark.redis_io.durability import Unconfirmed
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.routing import event_routing as flows
from busmq_spark.routing.cloud_event import Event, Extension, make_event
from busmq_spark.routing.event_patterns import check_key
from busmq_spark.routing.event_routing import EventPublishReceipt, EventRoutingTable, check_queue
from busmq_spark.tracing import TRACEPARENT, current_traceparent

if TYPE_CHECKING:
    from busmq_spark.bus.redis_server_links import RedisServerLinks
    from busmq_spark.options import BusOptions

EVENT_ID_BITS = 128
_ADVICE_UNCONFIRMED = (
    "A repeat would double them. If they must not be lost in a fail-over, send the same Event, with"
    " its id, once more when the replicas keep up; its readers tell by the id that they have it"
)
log = logging.getLogger("busmq_spark")


class EventAttributes(TypedDict, total=False):
    """The attributes of an event besides its data; see Event."""

    id: str
    source: str
    type: str
    time: str
    subject: str
    datacontenttype: str
    dataschema: str
    extensions: Mapping[str, Extension]


class EventRoutingMixin:
    """Methods of a bus for events and commands."""

    options: BusOptions
    _subscribers: EventRoutingTable | None = None

    @property
    def servers(self) -> RedisServerLinks:
        """The servers of the bus."""
        raise NotImplementedError

    async def publish(
        self,
        keys: str | Sequence[str],
        data: object = None,
        *,
        require: int = 0,
        **about: Unpack[EventAttributes],
    ) -> EventPublishReceipt:
        """Push one event to each queue that is subscribed to one of its keys.

        An event has a new id, the present time, and its first key as its type, unless ``about``
        says otherwise. A queue that only peers of a federation server have subscribed, and that is
        full or gone, is in ``missed`` of the receipt and is no error.

        Args:
            keys: Key of the event, such as ``"user.signup"``, or a list of keys.
            data: Bytes, a value that JSON can express, or an Event, which is pushed unchanged.
            require: Fewest subscribed queues. With fewer, nothing is pushed.
            **about: Attributes of the event: ``id``, ``type``, ``time``, ``source`` …

        Returns:
            A receipt with the id of the event and the queues that have it.

        Raises:
            TooFewDestinations: Fewer than ``require`` queues are subscribed.
            PublishIncomplete: A queue is full or cannot be reached.
            LinkLost: The table of subscriptions cannot be read.
            ConfigError: A key is not valid.
        """
        wanted = keys_of(keys)
        event = event_of(wanted, data, about)
        value = event.encode()
        self._subscribers = found = await self._run_at_table(
            flows.read_subscribers(self._subscribers)
        )
        queues = found.owners_by_queue(wanted)
        if len(queues) < require:
            raise TooFewDestinations(keys=", ".join(wanted), found=len(queues), wanted=require)
        outcomes = await asyncio.gather(
            *(
                self._deliver(
                    flows.deliver_to_peer if flows.is_of_peers(owners) else flows.deliver_event,
                    queue,
                    value,
                )
                for queue, owners in queues.items()
            ),
            return_exceptions=True,
        )
        missing: dict[str, str] = {}
        missed: dict[str, str] = {}
        gone: set[str] = set()
        for (queue, owners), outcome in zip(queues.items(), outcomes, strict=True):
            if isinstance(outcome, BusError):
                foreign = flows.is_of_peers(owners) and flows.is_fault_of_queue(outcome)
                (missed if foreign else missing)[queue] = str(outcome)
                if foreign and isinstance(outcome, QueueMissing):
                    gone.add(queue)
            elif isinstance(outcome, BaseException):
                raise outcome
        if gone:
            await self._end_rows_of_peers(found, gone)
        stored = [queue for queue in queues if queue not in missing and queue not in missed]
        if missing or len(stored) < require:
            raise PublishIncomplete(event=event.id, stored=stored, missing={**missing, **missed})
        return EventPublishReceipt(event.id, tuple(stored), missed)

    async def _end_rows_of_peers(self, table: EventRoutingTable, queues: set[str]) -> None:
        try:
            await self._run_at_table(flows.end_rows_of_peers(table, queues, new_token()))
        except BusError as error:
            log.debug(
                "rows of queues that are no more stay in the table of subscriptions: %s", error
            )

    async def send(
        self, queue: str, data: object = None, **about: Unpack[EventAttributes]
    ) -> EventPublishReceipt:
        """Push a command to a queue. A command is an event for one group.

        From the first command on, the queue accepts one group or Spark subscription only. If the
        connection breaks before the reply, it is unknown whether the command is stored.

        Args:
            queue: Name of the queue.
            data: As for ``publish``.
            **about: Attributes of the event; ``type`` is the name of the queue by default.

        Returns:
            A receipt, as for ``publish``.

        Raises:
            QueueBusy: The queue has several groups.
            QueueFull: The queue is full.
            LinkLost: The connection broke, or the server cannot be reached.
        """
        event = event_of([check_queue(queue)], data, about)
        await self._deliver(flows.send_command, queue, event.encode())
        return EventPublishReceipt(event.id, (queue,))

    async def subscribe(self, patterns: str | Sequence[str], *, into: str) -> int:
        """Subscribe a queue to events. The subscription holds until ``unsubscribe`` or ``forget``.

        Args:
            patterns: Pattern of keys, or a list: ``a.*`` matches ``a.b``; ``a.#`` matches ``a``,
                ``a.b`` and ``a.b.c``.
            into: Name of the queue.

        Returns:
            The number of patterns that are new for the queue.

        Raises:
            ConfigError: An argument has a wrong type or value.
            LinkLost: The server cannot be reached in time.
        """
        return await self._run_at_table(flows.subscribe(_texts(patterns), into, new_token()))

    async def unsubscribe(self, patterns: str | Sequence[str], *, into: str) -> int:
        """End subscriptions of a queue. Messages in the queue stay.

        Args:
            patterns: Pattern that ends, or a list of patterns.
            into: Name of the queue.

        Returns:
            The number of subscriptions that ended.

        Raises:
            ConfigError: An argument has a wrong type or value.
            LinkLost: The server cannot be reached in time.
        """
        return await self._run_at_table(flows.unsubscribe(_texts(patterns), into, new_token()))

    async def forget(self, queue: str) -> int:
        """End every subscription of a queue. Its messages stay.

        Args:
            queue: Name of the queue.

        Returns:
            The number of subscriptions that ended.

        Raises:
            ConfigError: An argument has a wrong type or value.
            LinkLost: The server cannot be reached in time.
        """
        return await self._run_at_table(flows.forget_queue(queue, new_token()))

    async def subscriptions(self) -> list[tuple[str, str]]:
        """Return each pattern with a queue that is subscribed with it, sorted.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        return await self._run_at_table(flows.read_table())

    async def _end_revoked_event_rows(self, may_keep: Callable[[str, str, str], bool]) -> int:
        """End each row that a federation peer has made and may not keep:
        ``may_keep(owner, pattern, queue)``. Return the number of removed rows.
        """
        return await self._run_at_table(flows.end_revoked_rows(may_keep, new_token()))

    async def _run_at_table(self, flow: Flow[T]) -> T:
        links = self.servers.commands
        return await links[server_index(EVENT_SUBSCRIPTIONS_KEY, len(links))].run(flow)

    async def _deliver(
        self, how: Callable[[QueueKeys, bytes, str], Flow[int]], queue: str, value: bytes
    ) -> int:
        keys = QueueKeys(queue, self.options.cluster)
        index, durability = await self.servers.locate(keys.metadata), self.options.durable
        flow, link = how(keys, value, new_token()), self.servers.commands[index]
        if not durability.on:
            return await link.run(flow)
        durable = self.servers.durable(index, durability)

        async def execute(step: Step) -> Any:
            # A server that has the push has all that came before it, so that is not waited for.
            if not isinstance(step, RedisCall) or step.idempotent:
                return await link.execute(step)
            try:
                return await durable.execute(step)
            except (NotReplicated, Unconfirmed) as error:
                first, stored = reply = error.replies[0]
                if stored <= 0:
                    return reply
                if isinstance(error, Unconfirmed):
                    raise
                raise error.about(
                    queue=queue, first=first, last=first, advice=_ADVICE_UNCONFIRMED
                ) from None

        return await run_async(flow, execute)


def _texts(patterns: str | Sequence[str]) -> Sequence[str]:
    return [patterns] if isinstance(patterns, str) else patterns


def keys_of(keys: str | Sequence[str]) -> list[str]:
    """The keys of an event: one text is one key. Raises ConfigError."""
    if not keys:
        raise ConfigError(reason=f"the keys are {keys!r}; expected at least one: 'user.signup'")
    return [check_key(key) for key in check_items("the keys", _texts(keys))]


def event_of(keys: Sequence[str], data: object, about: EventAttributes) -> Event:
    """The event with these keys, or the command for the queue that is the only one. Raises
    ConfigError, MessageRefused.
    """
    if isinstance(data, Event):
        if about:
            raise ConfigError(
                reason=f"{next(iter(about))} is given beside a whole Event; make the event with it"
            )
        return data
    if unknown := sorted(about.keys() - EventAttributes.__annotations__.keys()):
        known = ", ".join(EventAttributes.__annotations__)
        raise ConfigError(
            reason=(
                f"an event has no attribute {unknown[0]!r}; it has {known}, and what you name in"
                " extensions={…}"
            )
        )
    if len(keys) > 1:
        about = {**about, "extensions": {"keys": " ".join(keys), **about.get("extensions", {})}}
    if (traceparent := current_traceparent()) is not None:
        about = {**about, "extensions": {TRACEPARENT: traceparent, **about.get("extensions", {})}}
    named = {
        "type": keys[0],
        "id": new_token(EVENT_ID_BITS),
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **about,
    }
    return make_event(data, **named)
