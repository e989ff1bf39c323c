"""A partition in the hands of a member of a group: the ordered group of its queue, which the member
reads from and gives up again.

Rule 1. The owner of the partition is the holder of the lease of that ordered group. A partition
        that is handed over renews its lease no more: it waits until what it has handed out is
        acked, or until the lease has ended, whichever comes first.
Rule 2. A turn ends when another member had the partition, or its position was moved. Reading then
        begins after the last ack, and batches of the old turn cannot be acked.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from busmq_spark.bus.queue.base_group import GROUP_POLL_S
from busmq_spark.bus.queue.consume import LEASE_POLL_S
from busmq_spark.bus.queue.ordered_group import OrderedGroup
from busmq_spark.bus.wait_at_most import wait_at_most
from busmq_spark.errors import BusError, LinkLost, QueueBusy
from busmq_spark.queue.message import CHUNK_BYTES, Message
from busmq_spark.redis_io.lease_token import LEASE_MS
from busmq_spark.redis_io.retry import Pauses

if TYPE_CHECKING:
    from busmq_spark.bus.topics.member import Member
    from busmq_spark.bus.topics.topic_partition_queue import TopicPartitionQueue

POLLS_WHILE_LINGERING = 4
"""Polls within ``linger_s`` while a batch is not full."""
RELEASE_LEASE_TIMEOUT_S = 2.0
"""Longest wait for a server to take a lease back; then it ends by itself."""


class OwnedPartitionMessages(list[Message]):
    """Messages of one partition, in order."""

    def __init__(self, messages: list[Message], share: OwnedPartition) -> None:
        super().__init__(messages)
        self.share = share
        self.turn = share.turn

    @property
    def topic(self) -> str:
        """The name of their topic."""
        return self.share.topic

    @property
    def partition(self) -> int:
        """Their partition."""
        return self.share.partition


class OwnedPartition(OrderedGroup):
    """Reads one partition for a member, as a task of the bus, from ``start`` to ``give_up``."""

    def __init__(self, member: Member, queue: TopicPartitionQueue, start: str | int) -> None:
        super().__init__(queue, member.name, start)
        self.topic, self.partition = member.topic.name, queue.partition
        self.turn: int = 0
        self.leaving = False
        self._partition_queue, self._member = queue, member
        self._at_once = False
        self._unacked = 0
        """The last message that was handed out in this turn, 0 once it is acked."""
        self._assigned: int | None = None
        """The turn of which the member was told; the partition in the last ``assigned`` event; None
        after its end.
        """
        self._taken, self._settled = asyncio.Event(), asyncio.Event()
        self._task = member.bus.spawn(
            self._run_until_left(), f"reading {queue.name} for a member of group {member.name}"
        )

    @property
    def is_ours(self) -> bool:
        """Whether the member owns the partition, and keeps it."""
        return self.holds and not self.leaving

    def wake(self) -> None:
        """The lease may be free, or messages may have come: do not sleep on."""
        self._wake.set()

    def stop_waiting_for_acks(self) -> None:
        """Wait for no ack any more."""
        self._at_once = True
        self._settled.set()

    def take(self, batch: OwnedPartitionMessages) -> bool:
        """Whether a batch may be handed out now; reading goes on either way."""
        self._taken.set()
        if batch.turn != self.turn or self.leaving:
            return False
        if not self.holds:
            self._acked = -1  # so that reading begins anew at what is acked, with this batch
            return False
        self._unacked = batch[-1].id
        return True

    async def ack_batch(self, batch: OwnedPartitionMessages) -> None:
        """Acknowledge a batch, and those before it. Raises QueueBusy where the partition was
        another's since it was handed out.
        """
        if batch.turn != self.turn or not self._running:
            raise self.moved_away()
        await self.ack(batch[-1].id)
        if batch[-1].id >= self._unacked:
            self._unacked = 0
        self._settled.set()

    def moved_away(self) -> QueueBusy:
        """The error of an ack that comes too late."""
        found = (
            f"was given to another member of group {self.name!r}, which gets these messages again"
        )
        return QueueBusy(queue=self.queue.name, found=found, remedy="Go on with member.batches()")

    async def give_up(self) -> None:
        """Stop reading; wait until what was handed out is acked, the lease has ended or
        ``stop_waiting_for_acks`` was called.

        Then release the lease.
        """
        self.leaving = True
        if self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._renewing is not None:
            self._renewing.cancel()
        if self.holds:
            await self._member._emit_and_wait("revoked", self.partition)
        while self.holds and self._unacked and not self._at_once:
            self._settled.clear()
            await wait_at_most(
                max(0.0, self._renewed + LEASE_MS / 1000 - time.monotonic()), self._settled.wait
            )
        if self._unacked and not self._at_once:
            await self._member._emit_and_wait("lost", self.partition)
        with suppress(TimeoutError, BusError):
            async with asyncio.timeout(RELEASE_LEASE_TIMEOUT_S):
                await self._leave(None)

    # -- inside ------------------------------------------------------------------------------------

    async def _run_until_left(self) -> None:
        try:
            await self._enter()
            await self._read_until_stopped()
        except BusError as error:
            self._member.keep_first_error(error)

    async def _enter(self) -> None:
        pauses = Pauses()
        while True:
            try:
                await self._partition_queue.ensure_attached()
                await self.__aenter__()
                return
            except LinkLost:
                await asyncio.sleep(pauses.next_s())

    async def _read_until_stopped(self) -> None:
        pauses = Pauses()
        while self._running:
            held = await self._run_unless_unreachable(self._hold_under_lock, pauses)
            await self._tell_member()
            if held is None:  # the server was away, and is asked again after a pause
                continue
            if held and self._member.reading.is_set() and await self._read_batch(pauses):
                continue
            await self._sleep_unless_woken(GROUP_POLL_S if self.holds else LEASE_POLL_S)

    async def _read_batch(self, pauses: Pauses) -> bool:
        """Read a batch and wait until the member has handed it out; False when there is none."""
        async with self._member.slots:
            batch = await self._run_unless_unreachable(self._next_batch, pauses)
            await self._tell_member()
            if not batch:
                return False
            self._taken.clear()
            self._member.offer(batch)
            await self._taken.wait()
            return True

    async def _hold_under_lock(self) -> bool:
        async with self._lock:
            return await self._acquire_or_keep_lease()

    async def _next_batch(self) -> OwnedPartitionMessages:
        messages = await self._read_next_batch(self._member.most)
        if messages and self._member.linger_s:
            messages = await self._fill_batch(messages)
        return OwnedPartitionMessages(messages, self)

    async def _fill_batch(self, messages: list[Message]) -> list[Message]:
        """The messages and what follows them within ``linger_s``, until the batch is full. Redis is
        asked after a push, and at the end.
        """
        most, turn = self._member.most, self.turn
        for poll in range(1, POLLS_WHILE_LINGERING + 1):
            if (
                len(messages) >= most
                or sum(len(message.value) for message in messages) >= CHUNK_BYTES
            ):
                break
            await asyncio.sleep(self._member.linger_s / POLLS_WHILE_LINGERING)
            if self._wake.is_set() or poll == POLLS_WHILE_LINGERING:
                self._wake.clear()
                with suppress(LinkLost):  # the present messages can be handed out
                    more = await self._read_next_batch(most - len(messages))
                    messages = (
                        messages + more if self.turn == turn else more
                    )  # a new turn begins with what is not acked, these messages too
                    turn = self.turn
        return messages

    async def _tell_member(self) -> None:
        """Emit ``lost`` when the turn that was assigned has ended, and ``assigned`` when one has
        begun.
        """
        turn = self.turn if self.holds else None
        if self._assigned is not None and turn != self._assigned:
            self._assigned = None
            await self._member._emit_and_wait("lost", self.partition)
        if turn is not None and self._assigned is None:
            self._assigned = turn
            await self._member._emit_and_wait("assigned", self.partition)

    async def _acquire_or_keep_lease(self) -> bool:
        return self.holds if self.leaving else await super()._acquire_or_keep_lease()

    async def _register(self) -> None:
        before = self._marks
        await super()._register()
        if self._marks is not before:  # reading begins anew
            self.turn += 1
            self._unacked = 0
