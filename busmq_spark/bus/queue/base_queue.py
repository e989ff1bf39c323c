"""The part that a queue of this bus and a queue of another (``federation/client/queue.py``) share:
being attached, and having one consumption.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, get_args

from busmq_spark.arguments import check_flag, check_mapping, check_whole
from busmq_spark.bus.emitter import Emitter, Handle, LinkEvent
from busmq_spark.bus.waiting import EarlyCalls
from busmq_spark.errors import ConfigError, StateError
from busmq_spark.queue.keys import check_name
from busmq_spark.queue.queue import MIN_RECORD_TTL_S

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext
    from busmq_spark.bus.queue.base_consumption import BaseConsumption, ConsumeKeywords
    from busmq_spark.groups.shared_group import GroupState
    from busmq_spark.queue.message import Message
    from busmq_spark.reading.reader_subscriptions import QueueSubscriptionStatus

QueueEvent = Literal[
    "attaching", "attached", "detaching", "detached", "consuming", "message", "deleted", "error"
]
DEFAULT_QUEUE_TTL_S = 30
"""npm busmq's. For what is good only while its peers are there: channels, services, and queues that
npm peers create at our servers.
"""
_NPM_METADATA_FIELDS, _OUR_METADATA_FIELDS = (
    ("ttl", "source", "discover", "maxsize"),
    ("born", "sizes", "acked", "clock", "command", "cap"),
)
_MIRROR_METADATA_FIELDS, _RETENTION_METADATA_FIELDS = (
    ("mirror_of", "mirrored", "promoted"),
    ("retain", "done", "lets", "bytes"),
)
RESERVED_METADATA_FIELDS = frozenset(
    (
        *_NPM_METADATA_FIELDS,
        *_OUR_METADATA_FIELDS,
        *_MIRROR_METADATA_FIELDS,
        *_RETENTION_METADATA_FIELDS,
    )
)
"""Metadata that belong to the bus."""


class BaseQueue(Handle, Emitter[QueueEvent | LinkEvent]):
    """The part that a local queue and a federated one (``RemoteQueue``) share. ``async with``
    attaches and detaches.
    """

    events: tuple[QueueEvent | LinkEvent, ...] = get_args(QueueEvent)
    _consumption: BaseConsumption | None

    def __init__(self, bus: BusContext, name: str) -> None:
        super().__init__(bus._spawn)
        self.bus, self.name = bus, check_name("queue", name)
        self.ttl_s = 0
        """Seconds the queue exists while no client is attached; 0 while this object is not."""
        self.discoverable = False
        self.pushed = 0
        """Messages pushed through this object."""
        self.consumed = 0
        """Messages handed over by this object."""
        self.handed = 0
        """The highest id handed over since it was attached: the highest that an ack is good for."""
        self._consumption = None
        self._lock = asyncio.Lock()
        self.early = EarlyCalls(self._not_attached)
        """Calls made before an attach has ended."""

    async def __aenter__(self) -> Self:
        await self.attach()
        return self

    def attach(
        self,
        *,
        ttl_s: int = MIN_RECORD_TTL_S,
        maxsize: int = 0,
        discoverable: bool = False,
    ) -> Coroutine[Any, Any, bool]:
        """Create the queue, or join an existing one, which keeps its ttl and maxsize.

        An attached queue is kept alive. Pushes that begin before this call has ended are kept and
        stored in order; they fail if it fails.

        Args:
            ttl_s: Lifetime in seconds of a new queue without any program attached: 7 days by
                default, 30 s with npm busmq.
            maxsize: Most messages of a new queue; 0 means no limit.
            discoverable: Announce the queue to federated buses.

        Returns:
            Whether the queue existed.

        Raises:
            StateError: The queue is attached already, or the bus is not open.
            LinkLost: The server cannot be reached in time.
            FederationLost: The federation server cannot be reached in time.
        """

        check_whole("ttl_s", ttl_s, 1)
        check_whole("maxsize", maxsize)
        check_flag("discoverable", discoverable)

        def work() -> Coroutine[Any, Any, bool]:
            return self._attach(ttl_s, maxsize, discoverable=discoverable)

        return self.early.begin(work)

    async def _attach(self, ttl_s: int, maxsize: int, *, discoverable: bool) -> bool:
        raise NotImplementedError

    async def detach(self) -> None:
        """No error when not attached."""
        raise NotImplementedError

    @property
    def attached(self) -> bool:
        """Whether this object is attached; an unreachable server does not change that."""
        return self.ttl_s > 0

    def consume(self, **options: Unpack[ConsumeKeywords]) -> BaseConsumption:
        """The messages, oldest first."""
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[Message]:
        """The messages of ``consume()``: ``async for message in queue``."""
        return aiter(self.consume())

    async def subscribe(self, name: str, start: str | int = "earliest") -> int:
        """The last acked id of the subscription, registered now if it was not."""
        raise self._not_federated(f"subscribe({name!r}, {start!r})")

    async def unsubscribe(self, name: str) -> bool:
        """Whether there was such a subscription."""
        raise self._not_federated(f"unsubscribe({name!r})")

    async def subscriptions(self) -> list[QueueSubscriptionStatus]:
        """Every subscription."""
        raise self._not_federated("subscriptions()")

    def group(
        self,
        name: str,
        *,
        start: str | int = "earliest",  # noqa: ARG002  # as of a queue here
        shared: bool = False,  # noqa: ARG002  # as of a queue here
        **options: Any,  # noqa: ARG002  # as of a queue here
    ) -> Any:
        """A named reader of the queue."""
        raise self._not_federated(f"group({name!r})")

    async def groups(self) -> list[GroupState]:
        """Every group and subscription."""
        raise self._not_federated("groups()")

    async def id_at(self, time: int | str | datetime) -> int:
        """The last id that existed before a time."""
        raise self._not_federated(f"id_at({time!r})")

    async def ms_of(self, id: int) -> int | None:
        """Return the time in milliseconds since 1970 at which a message was certainly stored."""
        raise self._not_federated(f"ms_of({id})")

    async def _server_ms(self) -> float:
        """Milliseconds since 1970 by the clock of the queue's server; by ours where that cannot be
        asked.
        """
        return time.time() * 1000

    def each(
        self, handler: Callable[[Message], Any] | None = None, **options: Unpack[ConsumeKeywords]
    ) -> asyncio.Task[None]:
        """Consume with callbacks. The handler and the event ``message`` get every message in turn.

        The returned task ends with the consumption. It fails with an exception of the handler, and
        ends the bus.

        Args:
            handler: A function or a coroutine function of one message.
            **options: As for ``consume``.

        Raises:
            ConfigError: An option has a wrong name, type or value.
        """
        return self.bus._spawn(self.consume(**options).deliver(handler), f"consuming {self.name}")

    async def stop(self) -> None:
        """End the consumption, if there is one.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        if self._consumption is not None:
            await self._consumption.stop()

    @property
    def consuming(self) -> bool:
        """Whether a consumption has begun and not ended."""
        return self._consumption is not None and self._consumption.active

    def _need_attached(self, what: str) -> int:
        if not self.attached:
            raise self._not_attached(what)
        self.bus._check_loop()
        return self.ttl_s

    def _need_attaching(self, what: str) -> None:
        """Raises StateError unless it is attached, or about to be."""
        if not (self.attached or self.early.opening):
            raise self._not_attached(what)

    def _not_attached(self, what: str) -> StateError:
        remedy = "Call attach() first, or use 'async with queue:'"
        return StateError(
            event=what, what=f"queue {self.name!r}", state="not attached", remedy=remedy
        )

    def _not_federated(self, call: str) -> ConfigError:
        return ConfigError(
            reason=(
                f"{call} cannot be said over federation; call it on a bus at the Redis of queue"
                f" {self.name!r}, or run busmq there"
            )
        )

    def _not_reliable(self, remedy: str) -> StateError:
        return StateError(
            event="ack on",
            what=f"queue {self.name!r}",
            state="not consumed reliably by this object",
            remedy=remedy,
        )

    @staticmethod
    def _check_fields(fields: Mapping[str, object]) -> None:
        if taken := sorted(RESERVED_METADATA_FIELDS & set(check_mapping("fields", fields))):
            raise ConfigError(
                reason=f"metadata field {taken[0]!r} belongs to the bus; choose another name"
            )
