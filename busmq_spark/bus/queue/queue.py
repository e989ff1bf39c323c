"""A queue as a program uses it: a local queue that also makes its consumption and its groups.

async with bus.queue("orders") as orders:
    await orders.push({"n": 1})
    async for message in orders.consume(max=1):
        print(message.json())
"""

from __future__ import annotations

import logging
from typing import Any, Literal, Unpack, overload

from busmq_spark.arguments import check_flag
from busmq_spark.bus.queue.base_consumption import ConsumeKeywords, ConsumeOptions
from busmq_spark.bus.queue.consume import Consumption
from busmq_spark.bus.queue.local_queue import LocalQueue
from busmq_spark.bus.queue.ordered_group import OrderedGroup
from busmq_spark.bus.queue.shared_group import SharedGroup, SharedGroupKeywords, SharedGroupOptions
from busmq_spark.errors import ConfigError
from busmq_spark.option_parsing import from_call
from busmq_spark.queue import queue as flows

log = logging.getLogger("busmq_spark")


class Queue(LocalQueue):
    """A queue of a bus. ``async with bus.queue("orders") as orders:`` attaches and detaches.

    Events: ``attaching``, ``attached(existed)``, ``detaching``, ``detached``, ``consuming(bool)``,
    ``message(message)``, ``deleted``, ``error(error)`` when the server is unreachable while no call
    waits for it (emitted once, until it is reachable again).
    """

    _consumption: Consumption | None

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
        await self._ack_taken(min(last, self.handed))

    async def _ack_taken(self, last: int) -> None:
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

    # -- for the keep-alive ------------------------------------------------------------------------

    @property
    def _keys_to_touch(self) -> list[str]:
        """The keys of the consumption's own records."""
        return [] if self._consumption is None else self._consumption._keys_to_touch

    def _on_touch_reply(self, status: int) -> None:
        """Let the consumption read Redis itself, since pub/sub may lose messages."""
        super()._on_touch_reply(status)
        if self._consumption is not None:
            self._consumption.poll_now()
            if status < 0:
                self._consumption.lease_lost()
