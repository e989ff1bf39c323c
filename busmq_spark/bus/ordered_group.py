"""An ordered group: one holder at a time reads a queue in order and acks cumulatively; the others stand by.

It is the subscription that a Spark query names: a query and a program in one group exclude each other, and each goes on where the other stopped.

Rule 1. Nothing is handed out or acked by a holder that has not renewed its lease within the lease's time: it asks for the lease again first.
Rule 2. What was handed out and not acked comes again to whoever holds the group next, not to this holder as long as it lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from busmq_spark.bus.consume import LEASE_POLL_S
from busmq_spark.bus.group import POLL_S, Group
from busmq_spark.core import queue as queue_flows
from busmq_spark.core import state, subscription
from busmq_spark.core.flow import Flow
from busmq_spark.core.message import CHUNK_MESSAGES, Message
from busmq_spark.core.retry import Pauses
from busmq_spark.errors import BusError, ConfigError, IdsReissued, QueueBusy, QueueExpired, QueueRecreated, RedisRolledBack, StateError
from busmq_spark.redis_io.holder import LEASE_MS, is_dead, my_token

if TYPE_CHECKING:
    from busmq_spark.bus.queue import Queue

_REFUSED = {"missing": QueueExpired, "recreated": QueueRecreated, "older": RedisRolledBack, "reissued": IdsReissued}
log = logging.getLogger("busmq_spark")


class OrderedGroup(Group):
    """``async with queue.group("billing") as group: async for batch in group.batches(): …; await group.ack(batch)``."""

    def __init__(self, queue: Queue, name: str, start: str | int) -> None:
        super().__init__(queue, name, start)
        self._token = my_token()
        self._renewed = float("-inf")
        """When the lease was renewed last, by the loop's clock."""
        self._renewing: asyncio.Task[None] | None = None
        self._position = self._acked = 0

    @property
    def holds(self) -> bool:
        """Whether this holder has the group now: the others stand by."""
        return asyncio.get_running_loop().time() - self._renewed < LEASE_MS / 1000

    async def batches(self, most: int = CHUNK_MESSAGES) -> AsyncIterator[list[Message]]:
        """What is not acked yet, oldest first, in lists of up to ``most`` (1,000 at most). Waits while another has the group, and for messages.

        Ends at ``stop()``. What was handed out and is not acked comes again to the next holder.
        """
        if most < 1:
            raise ConfigError(reason=f"most is {most}; expected a whole number of at least 1")
        pauses = Pauses()
        while self._running:
            batch = await self._attempt(lambda: self._next(most), pauses)
            if batch:
                yield batch
            elif batch is not None:
                await self._nap(POLL_S if self.holds else LEASE_POLL_S)

    async def ack(self, up_to: Message | int | Sequence[Message]) -> None:
        """Acknowledge every message up to this one, or the last of these; again, or an older one, changes nothing.

        Raises QueueBusy when another has the group by now, and DataLoss where these messages are not in the queue any more.
        """
        last = up_to if isinstance(up_to, int) else up_to.id if isinstance(up_to, Message) else max((each.id for each in up_to), default=0)
        queue_flows.check_id(last)
        if not last:
            return
        if not self.holds and not await self._insist(lambda _: self._ask()):
            remedy = "Read on with batches(), which waits for it"
            raise QueueBusy(queue=self.queue.name, found=f"is read by another as group {self.name!r}", remedy=remedy)
        if last > self._position:
            behind = f"behind {self._position}, the last that was handed out"
            raise StateError(event="ack", what=f"id {last}", state=behind, remedy="Ack what was read")
        ack = state.Ack(self.queue.keys, last, self._born, "")
        [found] = await self._insist(lambda _: state.ack_to([ack], self.name))
        if found.status != "ok":
            raise _REFUSED[found.status](queue=self.queue.name, expected=f"id {last} of life {self._born}", found=found.detail or "nothing")
        self._acked = max(self._acked, last)

    # -- inside -----------------------------------------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        flow = subscription.register(self.queue.keys, self.name, self._start, is_dead)
        acked, fresh = await self.queue.run(flow), self._born != self.queue._born
        back = acked < self._acked  # somebody has moved the group
        self._position = acked if fresh or back else max(self._position, acked)
        self._acked, self._born = acked, self.queue._born

    def _ask(self) -> Flow[bool]:
        """Ask for the lease. Whether it is ours now."""
        keys, began = self.queue.keys, asyncio.get_running_loop().time()
        [holder] = yield from state.lease([keys], self.name, self._token, LEASE_MS, [""])
        if holder != self._token and is_dead(holder):
            [holder] = yield from state.lease([keys], self.name, self._token, LEASE_MS, [holder])
        self._renewed = began if holder == self._token else float("-inf")
        return self.holds

    async def _next(self, most: int) -> list[Message]:
        """What is to be handed out next: empty while another has the group, too."""
        async with self._busy:
            if not self._running:
                return []
            if not self.holds:
                if not await self.queue.run(self._ask()):
                    return []
                await self._register()  # the one before may have acked
                if self._renewing is None:
                    self._renewing = self.queue.bus.spawn(self._renew(), f"renewing group {self.name} of {self.queue.name}")
            elif self._born != self.queue._born:
                log.warning("queue %r was made anew; group %r begins at its oldest message", *self._names)
                self._start = "earliest"
                await self._register()
            link = self.queue.bus.servers.takes[self.queue.server]
            batch = await link.run(queue_flows.after(self.queue.keys, self._position, 0, min(most, CHUNK_MESSAGES)))
            if not self.holds or not self._running:
                return []
            self._position = batch[-1].id if batch else self._position
            return batch

    async def _renew(self) -> None:
        while self._running:
            await asyncio.sleep(LEASE_MS / 3000)
            if self.holds:
                began = asyncio.get_running_loop().time()
                with suppress(BusError):  # the next time, or else the lease ends
                    [alive] = await self.queue.run(state.keep_alive([self.queue.keys], self.name, self._token, LEASE_MS))
                    self._renewed = began if alive >= 0 else float("-inf")

    async def _give_up(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        async with self._busy:
            self._renewed = float("-inf")
            await self.queue.run(state.release(self.queue.keys, self.name, self._token))
