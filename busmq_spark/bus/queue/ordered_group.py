"""An ordered group: one holder at a time reads a queue in order and acks cumulatively; the others
stand by.

It is the subscription that a Spark query names: a query and a program in one group exclude each
other, and each goes on where the other stopped.

Rule 1. Nothing is handed out or acked by a holder that has not renewed its lease within the lease's
        time: it asks for the lease again first.
Rule 2. Messages that were handed out and not acked come again when another holder has had the
        group, after a seek, or when the group is entered again.
Rule 3. With every read the last message that was handed out is compared with what Redis has now: a
        Redis that lost its tail is noticed.

The lease of a holder:

    state        event                                 next state
    standing by  it is free, or its holder is dead     holding; reading begins after the last ack,
                                                       where another had it or the group was moved
    standing by  another holder has it                 standing by, for LEASE_POLL_S
    holding      it is renewed, each third of LEASE_MS holding
    holding      LEASE_MS without a renewal            standing by
    holding      a renewal is refused                  standing by
    any          stop()                                released
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from busmq_spark.arguments import check_items
from busmq_spark.bus.queue.base_group import GROUP_POLL_S, BaseGroup, check_batch_size
from busmq_spark.bus.queue.consume import LEASE_POLL_S
from busmq_spark.errors import (
    BusError,
    IdsReissued,
    QueueBusy,
    QueueExpired,
    QueueRecreated,
    RedisRolledBack,
    StateError,
)
from busmq_spark.queue import queue as queue_flows
from busmq_spark.queue.message import CHUNK_MESSAGES, Message
from busmq_spark.reading import reader_operations, reader_subscriptions
from busmq_spark.reading.reader_record import Announcement, lease_field
from busmq_spark.reading.readers import describe_holder_of
from busmq_spark.reading.skipping import skipped_ids
from busmq_spark.redis_io.lease_token import LEASE_MS, describe_holder, is_dead, my_token
from busmq_spark.redis_io.reader_announcer import ReaderAnnouncer
from busmq_spark.redis_io.retry import Pauses

if TYPE_CHECKING:
    from busmq_spark.bus.queue.local_queue import LocalQueue

_ERROR_OF_ACK_STATUS = {
    "missing": QueueExpired,
    "recreated": QueueRecreated,
    "older": RedisRolledBack,
    "reissued": IdsReissued,
}
log = logging.getLogger("busmq_spark")


class OrderedGroup(BaseGroup):
    """A holder of an ordered group.

    ``async with queue.group("billing") as group: async for batch in group.batches(): …``, then
    ``await group.ack(batch)``.
    """

    _kind = "ordered"
    """Of its record beside the lease."""

    def __init__(self, queue: LocalQueue, name: str, start: str | int) -> None:
        super().__init__(queue, name, start)
        self._token = my_token()
        self._announcer = ReaderAnnouncer(self._kind, self._token)
        self._renewed = float("-inf")
        """The time of the last renewal of the lease, by the monotonic clock."""
        self._renewing: asyncio.Task[None] | None = None
        self._other = ""
        """The token of another holder, when the lease was last asked for."""
        self._position = self._acked = 0
        self._skipped: frozenset[int] = frozenset()
        """The ids that an operator has marked for this group to pass over."""
        self._marks: dict[int, str] = {}
        """Fingerprints of the last messages of batches that were handed out, by id."""

    @property
    def holds(self) -> bool:
        """Whether this holder has the group now: the others stand by."""
        return time.monotonic() - self._renewed < LEASE_MS / 1000

    async def batches(self, most: int = CHUNK_MESSAGES) -> AsyncIterator[list[Message]]:
        """Return messages without an ack, oldest first, in lists. Waits while another holder has
        the group.

        Ends at ``stop``. Reading goes on after messages that were handed out.

        Args:
            most: Most messages of a list, up to 1,000.

        Raises:
            DataLoss: Messages are gone. Enter the group again to begin at the last ack.
        """
        check_batch_size(most)
        self._need_entered("read")
        pauses = Pauses()
        while self._running:
            batch = await self._run_unless_unreachable(lambda: self._read_next_batch(most), pauses)
            if batch:
                with self._in_hand.hand_out(batch):
                    yield batch
            elif batch is not None:
                await self._sleep_unless_woken(GROUP_POLL_S if self.holds else LEASE_POLL_S)

    async def ack(self, up_to: Message | int | Sequence[Message]) -> None:
        """Acknowledge every message up to one. Acking it again, or an older one, changes nothing.

        Args:
            up_to: A message, an id, or a list whose last message counts.

        Raises:
            QueueBusy: Another holder has the group by now.
            DataLoss: These messages are not in the queue any more.
        """
        last = (
            up_to
            if isinstance(up_to, int)
            else (
                up_to.id
                if isinstance(up_to, Message)
                else max((each.id for each in check_items("up_to", up_to, Message)), default=0)
            )
        )
        queue_flows.check_id(last)
        self._need_entered("ack in", finishing=True)
        if last > self._position:
            behind = f"behind {self._position}, the last that was handed out"
            raise StateError(
                event="ack", what=f"id {last}", state=behind, remedy="Ack what was read"
            )
        while last < self._position and last + 1 in self._skipped:
            last += 1  # a skipped message has no other ack
        async with self._lock:
            await self._run_with_retries(lambda again: self._ack_while_leased(last, again=again))

    # -- inside ------------------------------------------------------------------------------------

    async def _ack_while_leased(self, last: int, *, again: bool) -> None:
        """Ack. ``again``: an ack may have been executed before, whose reply was lost.

        Another holder may have had the group since.
        """
        if (
            again
            and (
                await self._run(
                    reader_operations.last_acked_by(self.queue.keys, self.name, self._token)
                )
            )
            >= last
        ):
            self._on_acked(last)
            return
        if not await self._acquire_or_keep_lease():
            remedy = (
                "Read on with batches(), which waits for it, and hands out again what is not acked"
            )
            flow = describe_holder_of(self.queue.keys, self.name, self._other, describe_holder)
            try:
                who = await self._run(flow)
            except BusError:  # its token says who it is, too
                who = describe_holder(self._other)
            raise QueueBusy(
                queue=self.queue.name,
                found=f"is read by another as group {self.name!r} ({who})",
                remedy=remedy,
            )
        if last > self._position or (again and last <= self._acked):
            raise QueueBusy(
                queue=self.queue.name,
                found=f"was read by another as group {self.name!r}",
                remedy="Read on with batches()",
            )
        ack = reader_operations.CumulativeAckRequest(
            self.queue.keys, last, self._born, self._marks.get(last, "")
        )
        [found] = await self._run(reader_operations.ack_to([ack], self.name, self._token))
        if found.status != "ok":
            raise _ERROR_OF_ACK_STATUS[found.status](
                queue=self.queue.name,
                expected=f"id {last} of life {self._born}",
                found=found.detail or "nothing",
            )
        self._on_acked(last)

    @property
    def _said(self) -> Announcement:
        return self._announcer.announcement(lease_field(self.name))

    def _on_acked(self, last: int) -> None:
        self._announcer.note_committed(max(0, last - max(self._acked, 0)))
        self._acked = max(self._acked, last)
        self._in_hand.changed.set()
        log.debug("queue %r, group %r: acked up to id %d", *self._log_names, last)
        self._marks = {
            id: mark for id, mark in self._marks.items() if id > last or id == self._position
        }

    async def _register(self) -> None:
        acked = await self.queue.run(
            reader_subscriptions.register(self.queue.keys, self.name, self._start, is_dead)
        )
        self._start = "earliest"  # in a later life of the queue
        [found] = await self.queue.run(reader_operations.states([(self.queue.keys, -1)]))
        if acked != self._acked or found.born != self._born:
            self._position, self._marks = acked, {}
        self._acked, self._born = acked, found.born
        [skipped] = await self._run(skipped_ids([self.queue.keys], self.name))
        self._skipped = frozenset(skipped)

    async def _acquire_or_keep_lease(self) -> bool:
        """Whether the group is ours now. If another holder had it, or the group was moved, reading
        begins at the acked position.
        """
        if self.holds:
            return True
        keys, began = self.queue.keys, time.monotonic()
        [holder] = await self._run(
            reader_operations.lease([keys], self.name, self._token, LEASE_MS, [""], self._said)
        )
        if holder != self._token:
            self._acked = (
                -1
            )  # messages that were handed out here and not acked come again, whatever it has acked
            if is_dead(holder):
                [holder] = await self._run(
                    reader_operations.lease(
                        [keys], self.name, self._token, LEASE_MS, [holder], self._said
                    )
                )
        if holder != self._token:
            self._other = holder
            return False
        await self._register()
        self._renewed = began
        if self._renewing is None:
            self._renewing = self.queue.bus._spawn(
                self._renew_lease_regularly(), f"renewing group {self.name} of {self.queue.name}"
            )
        return self.holds

    async def _read_next_batch(self, most: int) -> list[Message]:
        """Return the next messages to hand out: empty while another has the group, too."""
        async with self._lock:
            if not self._running:
                return []
            self.queue._need_attached(f"read as group {self.name!r} from")
            if not await self._acquire_or_keep_lease():
                return []
            found = await self._run(
                queue_flows.read_following(self.queue.keys, self._position, most)
            )
            if found.born != self._born:
                log.warning(
                    "queue %r was made anew; group %r begins at its oldest message",
                    *self._log_names,
                )
                self._acked = -1
                await self._register()
                return []
            self._check_position_is_intact(found)
            if not self.holds or not self._running:
                return []
            if found.messages:
                self._announcer.note_planned(len(found.messages))
                self._position = found.messages[-1].id
                self._marks[self._position] = reader_operations.fingerprint(
                    found.messages[-1].value
                )
            return await self._without_skipped(found.messages)

    async def _without_skipped(self, messages: list[Message]) -> list[Message]:
        """Return the messages that no operator has marked. If all are marked, and nothing before
        them waits for an ack, they are acked here.
        """
        kept = [each for each in messages if each.id not in self._skipped]
        if messages and not kept and self._acked >= messages[0].id - 1:
            await self._ack_while_leased(messages[-1].id, again=False)
        return kept

    def _check_position_is_intact(self, found: queue_flows.ReadAfterResult) -> None:
        mark = self._marks.get(self._position, "")
        expected = f"id {self._position} that was handed out"
        if found.last_id < self._position:
            raise RedisRolledBack(
                queue=self.queue.name, expected=expected, found=f"last id {found.last_id}"
            )
        if mark and found.mark and mark != found.mark:
            raise IdsReissued(
                queue=self.queue.name, expected=f"{expected}, fingerprint {mark}", found=found.mark
            )

    async def _renew_lease_regularly(self) -> None:
        while True:
            await asyncio.sleep(LEASE_MS / 3000)
            if self.holds:
                began = time.monotonic()
                with suppress(BusError):  # the next time, or else the lease ends
                    [alive] = await self.queue.run(
                        reader_operations.keep_alive(
                            [self.queue.keys], self.name, self._token, LEASE_MS, self._said
                        )
                    )
                    self._renewed = began if alive > 0 else float("-inf")

    def _count_in_work(self) -> int:
        if not self.holds:
            return 0
        return sum(each.id > self._acked for batch in self._in_hand.others() for each in batch)

    # Of the other kind
    async def _give_back_held(self, error: Exception | None) -> None:  # noqa: ARG002
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        self._renewed, self._acked, self._marks = float("-inf"), -1, {}
        await self.queue.run(reader_operations.release(self.queue.keys, self.name, self._token))
