"""An ordered group: one holder at a time reads a queue in order and acks cumulatively; the others stand by.

It is the subscription that a Spark query names: a query and a program in one group exclude each other, and each goes on where the other stopped.

Rule 1. Nothing is handed out by a holder that has not renewed its lease within the lease's time.
Rule 2. What was handed out and not acked comes again: to this holder when it reads anew, or to the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from busmq_spark.bus.consume import LEASE_POLL_S
from busmq_spark.bus.group import POLL_S, Group
from busmq_spark.core import queue as queue_flows
from busmq_spark.core import state, subscription
from busmq_spark.core.message import CHUNK_MESSAGES, Message
from busmq_spark.core.retry import Pauses
from busmq_spark.errors import BusError, ConfigError, IdsReissued, LinkLost, QueueBusy, QueueExpired, QueueRecreated, RedisRolledBack, StateError
from busmq_spark.redis_io.holder import LEASE_MS, is_dead, my_token

_REFUSED = {"missing": QueueExpired, "recreated": QueueRecreated, "older": RedisRolledBack, "reissued": IdsReissued}
log = logging.getLogger("busmq_spark")


class OrderedGroup(Group):
    """``async with queue.group("billing") as group: async for batch in group.batches(): …; await group.ack(batch)``."""

    _renewed = float("-inf")  # when the lease was renewed last, by the loop's clock
    _renewing: asyncio.Task[None] | None = None
    _token = ""
    _position = 0

    @property
    def holds(self) -> bool:
        """Whether this holder has the group now: the others stand by."""
        return bool(self._token) and asyncio.get_running_loop().time() - self._renewed < LEASE_MS / 1000

    async def batches(self, most: int = CHUNK_MESSAGES) -> AsyncIterator[list[Message]]:
        """What is not acked yet, oldest first, in lists of up to ``most`` (1,000 at most). Waits while another has the group, and for messages.

        Ends at ``stop()``. Reading goes on behind what was handed out; what is not acked comes again once the group is entered anew.
        """
        if most < 1:
            raise ConfigError(reason=f"most is {most}; expected a whole number of at least 1")
        pauses = Pauses()
        while self._running:
            if not self.holds and not await self._attempt(self._hold, pauses):
                continue
            batch = await self._attempt(lambda: self._read(most), pauses)
            if not self.holds:
                log.warning("queue %r, group %r: not renewed in time, another may have it; what is not acked comes again", *self._names)
            elif batch:
                self._position = batch[-1].id
                yield batch
            elif batch is not None:
                await self._nap(POLL_S)

    async def ack(self, up_to: Message | int | Sequence[Message]) -> None:
        """Acknowledge every message up to this one, or the last of these; again, or an older one, changes nothing.

        Raises QueueBusy when another has the group by now, and DataLoss where these messages are not in the queue any more.
        """
        last = up_to if isinstance(up_to, int) else up_to.id if isinstance(up_to, Message) else max((each.id for each in up_to), default=0)
        queue_flows.check_id(last)
        if not last:
            return
        if not self.holds:
            remedy = "Read on with batches(), which waits for it"
            raise QueueBusy(queue=self.queue.name, found=f"may be read by another as group {self.name!r}", remedy=remedy)
        if last > self._position:
            behind = f"behind {self._position}, the last that was handed out"
            raise StateError(event="ack", what=f"id {last}", state=behind, remedy="Ack what was read")
        ack = state.Ack(self.queue.keys, last, self._born, "")
        [found] = await self._insist(lambda _: state.ack_to([ack], self.name))
        if found.status != "ok":
            raise _REFUSED[found.status](queue=self.queue.name, expected=f"id {last} of life {self._born}", found=found.detail or "nothing")

    # -- inside -----------------------------------------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        self._born = self.queue._born
        self._position = await self.queue.run(subscription.register(self.queue.keys, self.name, self._start, is_dead))

    async def _hold(self) -> bool:
        """Whether the group is ours now; a wait when it is another's."""
        queue, token = self.queue, self._token or my_token()
        [holder] = await queue.run(state.lease([queue.keys], self.name, token, LEASE_MS, [""]))
        if holder != token and is_dead(holder):
            [holder] = await queue.run(state.lease([queue.keys], self.name, token, LEASE_MS, [holder]))
        if holder != token:
            self._token = ""
            await self._nap(LEASE_POLL_S)
            return False
        self._token, self._renewed = token, asyncio.get_running_loop().time()
        await self._register()  # where its last holder stopped
        if self._renewing is None:
            self._renewing = queue.bus.spawn(self._renew(), f"renewing group {self.name} of {queue.name}")
        return True

    async def _renew(self) -> None:
        while self._running:
            await asyncio.sleep(LEASE_MS / 3000)
            if self.holds:
                began, token = asyncio.get_running_loop().time(), self._token
                with suppress(BusError):  # the next time, or else the lease ends
                    [alive] = await self.queue.run(state.keep_alive([self.queue.keys], self.name, token, LEASE_MS))
                    self._renewed = began if alive >= 0 else float("-inf")

    async def _read(self, most: int) -> list[Message]:
        if self._born != self.queue._born:
            log.warning("queue %r was made anew; group %r begins at its oldest message", *self._names)
            self._start = "earliest"
            await self._register()
        keys = self.queue.keys
        return await self.queue.bus.servers.takes[self.queue.server].run(queue_flows.after(keys, self._position, 0, min(most, CHUNK_MESSAGES)))

    async def _give_up(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        token, self._token = self._token, ""
        if token:
            with suppress(LinkLost):
                await self.queue.run(state.release(self.queue.keys, self.name, token))
