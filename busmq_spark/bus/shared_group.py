"""A shared group: many holders, in many processes, divide the messages of a queue. Each message is leased to one of them and settled by itself.

    async with bus.queue("mail") as mail, mail.group("send", shared=True, lease_s=30, tries=3) as group:
        async for batch in group.batches(most=100):
            for delivery in batch:
                await group.ack(delivery)  # or retry, reject, extend, release

Rule 1. A message that is not settled before its lease ends is leased again; the late answer to the earlier lease is refused.
Rule 2. A message whose tries are used up goes to the dead-letter queue, and then is settled: at least once.
Rule 3. Stopping gives back what was handed out and is not settled, at once and without counting the try.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from busmq_spark.bus.group import POLL_S, Group
from busmq_spark.core import dead_letter
from busmq_spark.core import group as flows
from busmq_spark.core.flow import Flow
from busmq_spark.core.group import Action, Delivery, Leased, Settlement
from busmq_spark.core.keys import is_subscription
from busmq_spark.core.message import CHUNK_MESSAGES
from busmq_spark.core.queue import clock_ms
from busmq_spark.core.retry import Pauses
from busmq_spark.core.subscription import register
from busmq_spark.errors import ConfigError, StateError
from busmq_spark.redis_io.holder import is_dead
from busmq_spark.redis_io.place import new_token

if TYPE_CHECKING:
    from busmq_spark.bus.queue import Queue

USED_UP = "its lease ended, and so did its tries"
MOST_S = 7 * 24 * 3600
log = logging.getLogger("busmq_spark")


class SharedKeywords(TypedDict, total=False):
    """The options of a shared group; see SharedOptions."""

    lease_s: float
    tries: int
    limit: int | None
    dead: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """How messages are leased. ``lease_s`` and ``limit`` count for all holders of the group, as they were given last."""

    lease_s: float = 30
    """Seconds until a message that is not settled is leased again."""
    tries: int = 3
    """How often a message is leased at most, before it becomes a dead letter."""
    limit: int | None = None
    """Most messages in flight, over all holders; None: as many as they ask for."""
    dead: str | None = None
    """The dead-letter queue; None: the name of the queue and ``.dead``."""

    def __post_init__(self) -> None:
        if not 1 <= self.lease_s <= MOST_S:
            raise ConfigError(reason=f"lease_s is {self.lease_s!r}; expected 1 to {MOST_S} seconds")
        for name in ("tries", "limit"):
            value = getattr(self, name)
            if (name, value) != ("limit", None) and (not isinstance(value, int) or value < 1):
                raise ConfigError(reason=f"{name} is {value!r}; expected a whole number of at least 1")


class SharedGroup(Group):
    """One holder of a shared group."""

    def __init__(self, queue: Queue, name: str, start: str | int, options: SharedOptions) -> None:
        super().__init__(queue, name, start)
        self._options = options
        self.dead = f"{queue.name}.dead" if options.dead is None else options.dead
        """Name of the dead-letter queue."""
        if not is_subscription(name):
            raise ConfigError(reason=f"the name of the shared group is {name!r}, with which its keys could be those of another queue or group")
        if self.dead == queue.name:
            raise ConfigError(reason=f"the dead-letter queue of {queue.name!r} is that queue itself; name another with dead=…")
        self._held: dict[int, Delivery] = {}
        self._sent = ""  # the token of a lease call whose reply was not had
        self._dead_queue = queue.bus.queue(self.dead)
        self._attaching = asyncio.Lock()
        self._warned = False

    async def batches(self, most: int = 100) -> AsyncIterator[list[Delivery]]:
        """Messages leased to this holder, in lists of up to ``most`` (1,000 at most): those to be tried again first, then new ones.

        Ends at ``stop()``.
        """
        if most < 1:
            raise ConfigError(reason=f"most is {most}; expected a whole number of at least 1")
        pauses = Pauses()
        while self._running:
            leased = await self._attempt(lambda: self._lease(most), pauses)
            if leased is None or not self._running:
                continue
            if leased.status == "other":
                await self._register_anew()
                continue
            if leased.gone and not self._warned:
                self._warned = True
                log.warning(
                    "%d messages left queue %r before group %r had settled them: another consumer takes them", leased.gone, self.queue.name, self.name
                )
            spent = [each for each in leased.deliveries if each.tries > self._options.tries]
            if spent:
                await self.reject(spent, USED_UP)
            if batch := [each for each in leased.deliveries if each.id in self._held]:
                yield batch
            elif not spent:
                await self._nap(min(POLL_S, leased.wait_ms / 1000) if leased.wait_ms >= 0 else POLL_S)

    async def ack(self, deliveries: Delivery | Sequence[Delivery]) -> list[Delivery]:
        """These are done. The result, here and below: those that were refused, since their lease had ended and another holder has, or had, them."""
        return await self._settle(deliveries, "ack")

    async def retry(self, deliveries: Delivery | Sequence[Delivery], *, delay_s: float = 0, error: str = "") -> list[Delivery]:
        """Try these again, in ``delay_s`` at the earliest. Those whose tries are used up become dead letters, with ``error`` as the reason."""
        some = _listed(deliveries)
        spent = [each for each in some if each.tries >= self._options.tries]
        refused = await self.reject(spent, error or "a retry was asked for, and its tries are used up") if spent else []
        return refused + await self._settle([each for each in some if each.tries < self._options.tries], "retry", delay_s)

    async def reject(self, deliveries: Delivery | Sequence[Delivery], error: str = "rejected") -> list[Delivery]:
        """Move these to the dead-letter queue."""
        some = _listed(deliveries)
        async with self._attaching:
            if not self._dead_queue.attached:
                await self._dead_queue.attach()
        now = await self._insist(lambda _: clock_ms(self.queue.keys))
        await self._dead_queue.push_many([dead_letter.envelope(self.queue.name, self.name, each, error, now) for each in some])
        return await self._settle(some, "ack")

    async def extend(self, deliveries: Delivery | Sequence[Delivery], *, lease_s: float | None = None) -> list[Delivery]:
        """Let the leases of these end in ``lease_s`` from now (the group's, when not given)."""
        return await self._settle(deliveries, "extend", self._options.lease_s if lease_s is None else lease_s)

    async def release(self, deliveries: Delivery | Sequence[Delivery]) -> list[Delivery]:
        """Give these back, as if they had not been leased."""
        return await self._settle(deliveries, "release")

    async def pause(self) -> None:
        """Lease nothing more, to any holder, until ``resume()``; what is leased can be settled."""
        await self._pause(paused=True)

    async def resume(self) -> None:
        """End a pause."""
        await self._pause(paused=False)

    async def drained(self) -> None:
        """Returns once nothing is leased."""
        await self._until(lambda found: not found.in_flight)

    # -- inside -----------------------------------------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        self._born = self.queue._born
        shared: dict[str, str | int] = {
            "lease_ms": round(self._options.lease_s * 1000),
            "limit": self._options.limit or 0,
            "tries": self._options.tries,
            "dead": self.dead,
        }
        await self.queue.run(register(self.queue.keys, self.name, self._start, is_dead, shared))

    async def _register_anew(self) -> None:
        if self._born == self.queue._born and await self.queue.exists():
            remedy = "Enter queue.group(…) again to make it anew"
            raise StateError(event="read", what=f"group {self.name!r} of queue {self.queue.name!r}", state="dropped", remedy=remedy)
        log.warning("queue %r was made anew; group %r begins at its oldest message", *self._names)
        self._held.clear()
        self._start = "earliest"
        await self._register()

    async def _lease(self, most: int) -> Leased | None:
        """None once it is stopped."""
        async with self._busy:
            if not self._running:
                return None
            link = self.queue.bus.servers.takes[self.queue.server]
            again, self._sent = bool(self._sent), self._sent or new_token()
            leased = await link.run(flows.lease(self.queue.keys, self.name, self._sent, most, again=again))
            self._sent = ""
            self._held.update({each.id: each for each in leased.deliveries})
        if leased.status == "missing":
            await self._nap(POLL_S)  # it is made anew by what keeps it alive
        return leased

    async def _settle(self, deliveries: Delivery | Sequence[Delivery], action: Action, seconds: float = 0) -> list[Delivery]:
        if not 0 <= seconds <= MOST_S:
            raise ConfigError(reason=f"{seconds!r} seconds; expected 0 to {MOST_S}")
        some, refused = _listed(deliveries), []
        for first in range(0, len(some), CHUNK_MESSAGES):
            refused += await self._settle_chunk(some[first : first + CHUNK_MESSAGES], action, round(seconds * 1000))
        return refused

    async def _settle_chunk(self, some: Sequence[Delivery], action: Action, ms: int) -> list[Delivery]:
        settlements, before = [Settlement(each.id, each.token, action, ms) for each in some], False

        def flow(again: bool) -> Flow[list[int] | None]:
            nonlocal before
            before = again
            return flows.settle(self.queue.keys, self.name, self._born, settlements)

        results = await self._insist(flow) or [0] * len(some)
        for each in some if action != "extend" else ():
            if (held := self._held.get(each.id)) is not None and held.token == each.token:
                del self._held[each.id]
        # Where the call may have been executed before, what is settled already was settled by us.
        refused = [each for each, result in zip(some, results, strict=True) if result == 0 or (result < 0 and not before)]
        if refused:
            log.warning(
                "group %r of queue %r: %s came too late for id %d, which another holder has by now", self.name, self.queue.name, action, refused[0].id
            )
        return refused

    async def _pause(self, *, paused: bool) -> None:
        if not await self.queue.run(flows.pause(self.queue.keys, self.name, paused=paused)):
            raise ConfigError(reason=f"queue {self.queue.name!r} has no shared group {self.name!r}; it is made when it is entered")

    async def _give_up(self) -> None:
        async with self._busy:
            try:
                if self._sent:
                    await self._insist(lambda _: self._recovered())
                if self._held:
                    await self._settle(list(self._held.values()), "release")
            finally:
                self._held.clear()
                await self._dead_queue.detach()

    def _recovered(self) -> Flow[None]:
        """What a lease call has leased whose reply was not had."""
        leased = yield from flows.lease(self.queue.keys, self.name, self._sent, 1, again=True)
        self._sent = ""
        self._held.update({each.id: each for each in leased.deliveries})


def _listed(deliveries: Delivery | Sequence[Delivery]) -> Sequence[Delivery]:
    return [deliveries] if isinstance(deliveries, Delivery) else list(deliveries)
