"""A member of a group of a topic: it owns a contiguous range of the partitions, and reads them; all
members together own all.

Rule 1. The list of members in Redis (groups/topic.py) is a hint: each member computes the same
        ranges from it, takes its own partitions and hands over the others. A partition is owned by
        lease (OwnedPartition), so two members never read one at the same time.
Rule 2. A hint says that members have come or gone, or that a partition is free. A lost hint costs
        seconds: members poll, and look when another's entry ends.
Rule 3. While the server with the list of members is away, each member keeps its partitions.
Rule 4. The owner of a partition is the holder of the lease of the ordered group of its queue. A
        partition that is handed over renews its lease no more: it waits until what it has handed
        out is acked, or until the lease has ended, whichever comes first.
Rule 5. A turn ends when another member had the partition, or its position was moved. Reading then
        begins after the last ack, and batches of the old turn cannot be acked.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, Self, get_args

from busmq_spark.arguments import check_number
from busmq_spark.bus.emitter import Emitter, Handle
from busmq_spark.bus.handler_calls import BatchesInHand
from busmq_spark.bus.queue.base_group import GROUP_POLL_S, check_batch_size
from busmq_spark.bus.queue.consume import LEASE_POLL_S
from busmq_spark.bus.queue.ordered_group import OrderedGroup
from busmq_spark.bus.waiting import wait_at_most
from busmq_spark.errors import BusError, ConfigError, LinkLost, QueueBusy, StateError
from busmq_spark.groups import topic as flows
from busmq_spark.groups.topic import MEMBER_TTL_MS, GroupMembershipSnapshot, partition_ranges
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.message import CHUNK_BYTES, CHUNK_MESSAGES, Message
from busmq_spark.queue.queue import clock_ms
from busmq_spark.reading import reader_subscriptions
from busmq_spark.redis_io.lease_token import LEASE_MS, is_dead, my_token
from busmq_spark.redis_io.retry import Pauses

if TYPE_CHECKING:
    from busmq_spark.bus.topics.base_topic import BaseTopic, TopicPartitionQueue
    from busmq_spark.redis_io.pubsub_connection import PubSubConnection

MemberEvent = Literal["assigned", "revoked", "lost"]
MAX_PREFETCHING_PARTITIONS = 16
"""The most partitions that have a batch read ahead."""
REJOIN_INTERVAL_S = MEMBER_TTL_MS / 3000
PAUSE_AFTER_OUTAGE_S = 1.0
"""Pause after an outage, so that the others can join again first."""
REJOIN_MARGIN_S = 0.05
FREED_PARTITION_SEPARATOR = "\n"
"""Between group and partition in a hint that the partition is free; no name has it."""

POLLS_WHILE_LINGERING = 4
"""Polls within ``linger_s`` while a batch is not full."""
RELEASE_LEASE_TIMEOUT_S = 2.0
"""Longest wait for a server to take a lease back; then it ends by itself."""


class Member(Handle, Emitter[MemberEvent]):
    """A member of a group of a topic.

    ``async with topic.group("agg") as member: async for batch in member.batches(): …``, then
    ``await member.ack(batch)``.

    Events: ``assigned(partition)`` when this member owns a partition; ``revoked(partition)`` when
    it is to give it up, and may still ack; ``lost(partition)`` when it does not own it any more
    though it had not given it up, or had not acked all that was handed out. A handler that is a
    coroutine function is waited for; the loop of ``batches()`` goes on meanwhile with other
    partitions.
    """

    events: tuple[MemberEvent, ...] = get_args(MemberEvent)

    def __init__(
        self,
        topic: BaseTopic,
        name: str,
        start: str | int,
        more: asyncio.Event | None = None,
    ) -> None:
        """``more``: set whenever ``_next_offered`` may have something."""
        super().__init__(topic.bus._spawn)
        self.bus, self.topic, self.name = topic.bus, topic, flows.check_group(name)
        self.reading, self.slots = asyncio.Event(), asyncio.Semaphore(MAX_PREFETCHING_PARTITIONS)
        self.most, self.linger_s = CHUNK_MESSAGES, 0.0
        self._start, self._late = start, set[int]()
        self._id = ""
        self._shares: dict[int, OwnedPartition] = {}
        self._offered: deque[OwnedPartitionMessages] = deque()
        self._more, self._look = more or asyncio.Event(), asyncio.Event()
        self._error: BusError | None = None
        self._running = False
        self._rounds: asyncio.Task[None] | None = None
        self._others: dict[str, int] = {}
        self._heard = 0.0
        self._giving: dict[asyncio.Task[None], OwnedPartition] = {}
        self._leaving = asyncio.Lock()
        self.in_hand: BatchesInHand[OwnedPartitionMessages] = BatchesInHand()

    def __repr__(self) -> str:
        return f"Member({self.topic.name!r}, {self.name!r})"

    async def __aenter__(self) -> Self:
        """Join. The group is registered in every partition, so that nothing is missed in partitions
        without a reader.

        Raises LinkLost while the server that knows of the topic is away, QueueBusy where the name
        is of another kind of reader.
        """
        if self._running:
            raise StateError(
                event="enter",
                what=f"group {self.name!r}",
                state="entered already",
                remedy="Make another with topic.group(…)",
            )
        await self.topic.attach()
        self._running, self._error = True, None
        try:
            await self._pubsub.subscribe(self.topic.keys.changed_channel, self._on_notification)
            await self._register()
            first = self.topic.queues[0]
            # A later member is later in the order: others keep more
            self._id = f"{await self.topic.run(clock_ms(first.keys)):013d}.{my_token()}"
            self._apply_membership(await self._join())
            self._rounds = self.bus._spawn(
                self._rejoin_regularly(),
                f"being a member of group {self.name} of {self.topic.name}",
            )
        except BaseException:
            await self.stop()
            raise
        self.bus._adopt(self)
        return self

    @property
    def partitions(self) -> list[int]:
        """The partitions that this member owns now."""
        return sorted(partition for partition, share in self._shares.items() if share.is_ours)

    async def batches(
        self, most: int = CHUNK_MESSAGES, linger_s: float = 0.0
    ) -> AsyncIterator[OwnedPartitionMessages]:
        """Return messages of the partitions of this member, in turn. Each batch is of one
        partition, in order.

        Messages that are handed out and not acked come again when the partition gets another
        member. Ends at ``stop``.

        Args:
            most: Most messages of a batch, up to 1,000.
            linger_s: Longest wait in seconds for a full batch.

        Raises:
            DataLoss: Messages of a partition are gone. Enter again to begin at the last ack.
        """
        self._begin_reading(most, linger_s)
        while self._running:
            self._more.clear()
            if (batch := self._next_offered()) is not None:
                with self.in_hand.hand_out(batch):
                    yield batch
            else:
                await self._more.wait()

    def _begin_reading(self, most: int, linger_s: float) -> None:
        """Let batches be offered. Raises ConfigError, StateError."""
        check_batch_size(most)
        check_number("linger_s", linger_s, 0, MEMBER_TTL_MS / 1000, "seconds")
        self._need_entered("read")
        self.most, self.linger_s = min(most, CHUNK_MESSAGES), float(linger_s)
        self.reading.set()
        for share in self._shares.values():
            share.wake()

    def _next_offered(self) -> OwnedPartitionMessages | None:
        """Return the next batch, None when it has to be waited for. Raises as ``batches``."""
        if self._error is not None:
            raise self._error
        while self._offered:
            batch = self._offered.popleft()
            if batch.share.take(batch):
                return batch
        return None

    async def ack(self, batch: OwnedPartitionMessages) -> None:
        """Acknowledge a batch, and messages of its partition that were handed out before it.

        Args:
            batch: A batch of ``batches``.

        Raises:
            QueueBusy: Another member has the partition by now, and gets these messages again.
            DataLoss: The messages are gone.
        """
        if not isinstance(batch, OwnedPartitionMessages):
            raise ConfigError(
                reason=(
                    f"a {type(batch).__name__} was to be acked; expected a batch, as batches()"
                    " hands it out"
                )
            )
        if not self._id:  # a stop that waits for this ack is no end
            self._need_entered("ack in")
        await batch.share.ack_batch(batch)
        self.in_hand.changed.set()

    async def stop(self) -> None:
        """End ``batches`` and leave the group. Other members get the partitions and the messages
        without an ack.

        A partition stays until the body of a loop over ``batches`` in another task or thread has
        acked its batch, or has ended.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        self._running = False
        self._more.set()
        async with self._leaving:
            await self.finish()
            if self._rounds is not None:
                self._rounds.cancel()
                self._rounds = None
            for share in self._shares.values():
                share.stop_waiting_for_acks()
            me = asyncio.current_task()  # of a handler that stops
            giving = [task for task in self._giving if task is not me]
            rest = [
                share for share in self._shares.values() if share not in self._giving.values()
            ]  # also of a stop that was cancelled
            await asyncio.gather(
                *giving, *(share.give_up() for share in rest), return_exceptions=True
            )
            self._shares.clear()
            self._offered.clear()
            self.reading.clear()
            if self._id:
                with suppress(LinkLost, StateError, TimeoutError):
                    async with asyncio.timeout(REJOIN_INTERVAL_S):
                        await self.topic.run(
                            flows.leave_group(self.topic.keys, self.name, self._id)
                        )
                self._id = ""
            with suppress(StateError):  # the bus was never open, or has ended
                self._pubsub.unsubscribe(self.topic.keys.changed_channel, self._on_notification)
            self.bus.release(self)

    detach = stop

    async def finish(self) -> None:
        """Hand out no more batches, give up idle partitions, and wait for bodies of loops."""
        self._running = False
        self._more.set()
        busy = {batch.share for batch in self.in_hand.others() if batch.share.has_unacked(batch)}
        if not busy:
            return
        idle = [each for each in self._shares.values() if each not in busy and not each.leaving]
        for share in idle:
            share.stop_waiting_for_acks()
            self._begin_to_give_up(share)
        await self.in_hand.wait_until_none(self._count_in_work, self)

    def _count_in_work(self) -> int:
        some = [batch for batch in self.in_hand.others() if batch.share.has_unacked(batch)]
        return sum(map(len, some))

    # -- for its shares ----------------------------------------------------------------------------

    def offer(self, batch: OwnedPartitionMessages) -> None:
        """A batch that may be handed out."""
        self._offered.append(batch)
        self._more.set()

    def _keep_first_error(self, error: BusError) -> None:
        """A partition cannot be read on."""
        self._error = self._error or error
        self._more.set()

    # -- inside ------------------------------------------------------------------------------------

    async def _register(self) -> None:
        """The group in every partition that can be reached. Partition 0 is the last one: if it
        knows the group, a partition without the group came later.
        """
        first, *others = self.topic.queues
        if first.reachable and (await first.run(flows.is_registered(first.keys, self.name))):
            self._start = "earliest"
        self._late = {
            queue.partition
            for queue in self.topic.queues
            if not (queue.attached and queue.reachable)
        }
        for part in (others, [first]):
            reached = [queue for queue in part if queue.partition not in self._late]
            steps = (
                queue.run(
                    reader_subscriptions.register(queue.keys, self.name, self._start, is_dead)
                )
                for queue in reached
            )
            for queue, outcome in zip(
                reached, await asyncio.gather(*steps, return_exceptions=True), strict=True
            ):
                if isinstance(outcome, LinkLost):
                    self._late.add(queue.partition)
                elif isinstance(outcome, BaseException):
                    raise outcome

    async def _join(self) -> GroupMembershipSnapshot:
        dead = [name for name in self._others if name != self._id and is_dead(name)]
        found = await self.topic.run(
            flows.join_group(self.topic.keys, self.topic._last_known, self.name, self._id, dead)
        )
        self._others, self._heard = found.members, time.monotonic()
        return found

    async def _rejoin_regularly(self) -> None:
        pauses = Pauses()
        while True:
            try:
                if (
                    time.monotonic() - self._heard > MEMBER_TTL_MS / 1000
                ):  # as the others do, which follow within a moment
                    await self._join()
                    await asyncio.sleep(PAUSE_AFTER_OUTAGE_S)
                found = await self._join()
            except BusError as error:
                if not isinstance(error, LinkLost):
                    self._keep_first_error(error)
                await asyncio.sleep(pauses.next_s())
                continue
            pauses = Pauses()
            self._apply_membership(found)
            await wait_at_most(self._seconds_until_rejoin(found), self._look.wait)
            self._look.clear()

    def _seconds_until_rejoin(self, found: GroupMembershipSnapshot) -> float:
        """Seconds until the next round, in which a member may be missed."""
        due = min(
            (until for name, until in found.members.items() if name != self._id),
            default=found.now_ms + MEMBER_TTL_MS,
        )
        return min(REJOIN_INTERVAL_S, max(0.0, (due - found.now_ms) / 1000) + REJOIN_MARGIN_S)

    def _apply_membership(self, found: GroupMembershipSnapshot) -> None:
        """Begin to read what is ours, and to give up what is not any more."""
        if not self._running:
            return
        self.topic._update_known(found.topic)
        mine = partition_ranges(list(found.members), self.topic.partitions).get(self._id, range(0))
        for partition, share in self._shares.items():
            if partition not in mine and not share.leaving:
                self._begin_to_give_up(share)
        for partition in mine:
            if partition not in self._shares:
                self._shares[partition] = OwnedPartition(
                    self,
                    self.topic.queues[partition],
                    self._start if partition in self._late else "earliest",
                )

    def _begin_to_give_up(self, share: OwnedPartition) -> None:
        share.leaving = True
        task = self.bus._spawn(self._give_up_partition(share), f"giving up {share.queue.name}")
        self._giving[task] = share
        task.add_done_callback(self._giving.pop)

    async def _give_up_partition(self, share: OwnedPartition) -> None:
        await share.give_up()
        if self._shares.get(share.partition) is share:
            del self._shares[share.partition]
        self._look.set()
        hint = command(
            "PUBLISH",
            self.topic.keys.changed_channel,
            f"{self.name}{FREED_PARTITION_SEPARATOR}{share.partition}",
        )
        with suppress(BusError):
            await self.bus.servers.commands[self.topic.server].execute(hint)

    def _on_notification(self, payload: bytes | None) -> None:
        group, free, partition = (
            (payload or b"").decode("utf-8", "replace").partition(FREED_PARTITION_SEPARATOR)
        )
        if not free and group in ("", self.name):
            self._look.set()
        elif group == self.name and partition.isdigit() and int(partition) in self._shares:
            self._shares[int(partition)].wake()

    def _need_entered(self, event: str) -> None:
        if not self._running:
            remedy = "Use it inside 'async with topic.group(…) as member:'"
            raise StateError(
                event=event,
                what=f"group {self.name!r} of topic {self.topic.name!r}",
                state="not entered, or stopped",
                remedy=remedy,
            )

    @property
    def _pubsub(self) -> PubSubConnection:
        return self.bus.servers.pubsub[self.topic.server]


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

    _kind = "topic"
    _is_left_by_bus = False

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
        self._task = member.bus._spawn(
            self._run_until_left(), f"reading {queue.name} for a member of group {member.name}"
        )

    @property
    def is_ours(self) -> bool:
        """Whether the member owns the partition, and keeps it."""
        return self.holds and not self.leaving

    def wake(self) -> None:
        """The lease may be free, or messages may have come: do not sleep on."""
        self._wake.set()

    def has_unacked(self, batch: OwnedPartitionMessages) -> bool:
        """Return whether this member can still ack messages of the batch."""
        return self.holds and batch.turn == self.turn and batch[-1].id > self._acked

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
            self._member._keep_first_error(error)

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
