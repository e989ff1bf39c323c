"""Consuming a queue: in batches, woken by the queue's notification, nothing lost by stopping.

Rule 1. Whatever was taken and not handed over stands in a record in Redis: ``toack`` when reliable,
        else a list of this consumer. A reply lost with its link is found there by the next call;
        stopping returns the rest of the record to the head of the queue. So stopping waits for a
        take under way: one that is executed after the return would strand what it took.
Rule 2. The next batch is taken when the one before is handed over, so at most ``prefetch`` messages
        are ever in memory.
Rule 3. A notification sets a flag; it is cleared before Redis is asked, so none is missed.
Rule 4. While the server is unreachable the consumer waits, without limit; a reliable consumer sends
        its lease token with every take.

The lease of a reliable consumption (its phases are those of BaseConsumption):

    state     event                                         next state
    none      begin()                                       asking
    asking    another client has it, ``wait``               asking, after LEASE_POLL_S
    asking    another client has it, not ``wait``           asking; begin() raises QueueBusy
    asking    its holder is dead                            asking, at once, in place of the holder
    asking    another consumption of this bus uses it       asking, after LEASE_POLL_S
    asking    it is ours                                    leased; the keep-alive renews it
    leased    a take finds it expired, and it is ours again leased
    leased    a take or a touch finds another holder        lost: QueueBusy, and phase STOPPING
    any       the consumption ends                          none; a lease of ours is released
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from busmq_spark.bus.queue.base_consumption import (
    BaseConsumption,
    ConsumeOptions,
    IterationPhase,
    reliable_message,
)
from busmq_spark.bus.waiting import wait_at_most
from busmq_spark.errors import BusError, LinkLost, QueueBusy
from busmq_spark.queue import queue as flows
from busmq_spark.queue.command_generators import Flow, T
from busmq_spark.queue.message import CHUNK_BYTES, CHUNK_MESSAGES, Message
from busmq_spark.queue.retention import read_retention
from busmq_spark.reading import reader_operations
from busmq_spark.reading.readers import describe_holder_of
from busmq_spark.redis_io.endpoint import retry_time_s
from busmq_spark.redis_io.lease_token import LEASE_MS, describe_holder, is_dead
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.redis_io.retry import LinkRetry, Pauses

if TYPE_CHECKING:
    from busmq_spark.bus.queue.local_queue import LocalQueue
    from busmq_spark.redis_io.pubsub_connection import PubSubConnection

LEASE_POLL_S = 0.5
log = logging.getLogger("busmq_spark")


class Consumption(BaseConsumption):
    """The messages of one queue, for one task. Begins with the first message asked for."""

    _queue: LocalQueue

    names_holder = True
    """Whether an error names the other reader; a peer of a federation server must not learn it."""

    def __init__(self, queue: LocalQueue, options: ConsumeOptions) -> None:
        super().__init__(options)
        self._queue = queue
        self._record = queue.keys.toack if options.reliable else queue.keys.in_flight(new_token())
        self._token = queue.bus.token if options.reliable else ""
        self._received = self._passed = self._handed = 0
        self._pauses: Pauses | None = None  # while the server is unreachable
        self.under_way = 0
        """Messages that were handed over and have not arrived yet."""
        self._ttl_s = (
            0  # the queue's, also once it is detached: an end that failed may be tried again
        )
        self._noted: bytes | None = None  # the last notification
        self._empty = False  # nothing to take until the next notification
        self._out = False  # the record may hold something
        self._doubt = False  # it may hold something that was not received
        self._leasing = False
        self._failed: BusError | None = None

    async def batches(self) -> AsyncIterator[list[Message]]:
        """The messages in the lists they came in: cheaper where messages are small and many."""
        while True:
            try:
                first = await self.__anext__()
            except StopAsyncIteration:
                return
            self._release_room(*self._buffer)
            batch = [first, *map(self._as_handed_over, self._buffer)]
            self._buffer.clear()
            self._handed = batch[-1].id
            self._queue.handed = max(self._queue.handed, self._handed)
            self._queue.consumed += len(batch) - 1
            yield batch

    def lease_lost(self) -> None:
        """Another client has become the reliable consumer: this one was disconnected for longer
        than its lease.
        """
        if self.follows is not None:
            self.follows.lease_lost()
        if self._token and self.running:
            remedy = "Consume again to wait for it"
            self._failed = QueueBusy(
                queue=self._queue.name,
                found="is consumed reliably by another process now",
                remedy=remedy,
            )
            self._start_stopping()

    @property
    def reliable(self) -> bool:
        """Whether messages are kept until they are acked."""
        return self._options.reliable

    def poll_now(self) -> None:
        """Ask Redis, even without a notification."""
        if self.follows is not None:
            self.follows.poll_now()
        self._wake.set()

    @property
    def _keys_to_touch(self) -> list[str]:
        """Keys of records of our own that must live as long as the queue."""
        own = [self._record] if self._out and not self._token else []
        return own if self.follows is None else own + self.follows._keys_to_touch

    # -- piece by piece: for a caller that looks at a message before taking it ---------------------

    async def begin(self) -> None:
        """Begin now, not with the first requested message: take the lease, restore messages without
        an ack, and receive notifications.

        Returns early when it is stopped meanwhile.
        """
        if self.running or self.is_stopping:
            return
        if self.follows is not None:
            await self.follows.stop()
            self.follows = None
        queue = self._queue
        if not queue.attached:
            await queue.early.wait_open("consume from")
        if self._options.remove and queue.keys.has_clock:
            await self._check_not_retained()
        if self._token:
            await self._acquire_lease()
            await self._run_with_retries(
                lambda: flows.ack(queue.keys, self._options.last, ttl_s=queue.ttl_s, restore=True)
            )
        if not self.is_stopping:
            await self._pubsub_connection.subscribe(queue.keys.available, self._on_notification)
        if not self.is_stopping:
            self._phase = IterationPhase.RUNNING
            queue._emit("consuming", True)

    async def wait_filled(self) -> None:
        """Returns when there is a ``head``. Raises StopAsyncIteration at the end."""
        while True:
            if self.is_stopping or (self._left == 0 and not self._buffer):
                asked = self.is_stopping
                try:
                    await self.stop()
                except LinkLost:
                    if not asked:  # else the caller of stop() gets the error
                        raise
                failed, self._failed = self._failed, None
                raise failed or StopAsyncIteration
            if self._buffer:
                return
            await self._begin_or_take_messages()

    def pop_head(self, *, arrived: bool = True) -> Message:
        """The head: it leaves the buffer, and does not go back to the queue any more.

        Without ``arrived`` it does, and with it what is handed over after it, unless
        :meth:`on_handed_over` is called: once for each, in their order, and before the next
        :meth:`wait_filled` without a ``head``.
        """
        message = self._buffer.popleft()
        self._release_room(message)
        self._passed = message.id
        if not arrived:
            self.under_way += 1
        elif not self.under_way:
            self._handed = message.id
        self._queue.handed = max(self._queue.handed, message.id)
        self._queue.consumed += 1
        return self._as_handed_over(message)

    def _as_handed_over(self, message: Message) -> Message:
        return reliable_message(message, self._queue) if self.reliable else message

    def on_handed_over(self, id: int) -> None:
        """The next message under way, the one with this id, has been handed over for good."""
        self.under_way -= 1
        self._handed = id if self.under_way else self._passed

    # -- taking ------------------------------------------------------------------------------------

    async def _begin_or_take_messages(self) -> None:
        """Do one step towards the next message."""
        if not self.running:
            await self.begin()
            return
        if self._pauses:
            await self._sleep_unless_woken(self._pauses.next_s())
        elif self._empty:
            await self._wake.wait()
        self._wake.clear()
        room, size = self._queue.room, 0
        if room is not None:
            await room.reserve()
        try:
            async with self._lock:
                if not self.is_stopping:
                    await self._take_messages()
                    size = sum(len(message.value) for message in self._buffer)
        finally:
            if room is not None:
                room.hold(size)

    async def _take_messages(self) -> None:
        most = min(
            self.prefetch, CHUNK_MESSAGES, self.prefetch if self._left is None else self._left
        )
        queue, again = self._queue, self._doubt
        self._ttl_s = queue.ttl_s
        self._empty = False  # cancelled from here on, it looks again
        self._doubt = self._out = self._options.remove
        try:
            batch = await queue.bus.servers.takes[queue.server].run(self._take_or_read_flow(most))
            if batch and self._token and batch[0].id <= queue.handed:
                await queue.check_life()
        except LinkLost as error:
            queue._not_touched(error)
            self._pauses = self._pauses or Pauses()
            return
        self._doubt, self._pauses = False, None
        if batch is None:
            await self._renew_lost_lease()
            self._empty = False  # nothing was looked at
            return
        self._out = bool(batch) and self._options.remove
        # A batch that is found in the record does not say how much the queue holds.
        self._empty = not batch or (
            not again and len(batch) < most and _batch_reached_queue_end(batch)
        )
        if batch:
            if log.isEnabledFor(logging.DEBUG):
                verb = "took" if self._options.remove else "read"
                words = "queue %r: %s %d messages, ids %d to %d"
                log.debug(words, queue.name, verb, len(batch), batch[0].id, batch[-1].id)
            self._buffer.extend(batch)
            self._received = batch[-1].id
            if self._left is not None:
                self._left -= len(batch)
            queue._note_time()

    def _take_or_read_flow(self, most: int) -> Flow[list[Message] | None]:
        keys = self._queue.keys
        if self._options.remove:
            return flows.take(
                keys,
                self._record,
                self._received,
                most=most,
                ttl_s=self._queue.ttl_s,
                token=self._token,
            )
        return flows.read_after(keys, self._received, self._options.index, most)

    async def _check_not_retained(self) -> None:
        if await self._run_with_retries(lambda: read_retention(self._queue.keys)):
            remedy = (
                "Read with a group (queue.group), or with remove=False; queue.retain() without"
                " limits ends it"
            )
            found = "keeps what is acknowledged, which a consumer that removes would hand out again"
            raise QueueBusy(queue=self._queue.name, found=found, remedy=remedy)

    # -- the lease ---------------------------------------------------------------------------------

    async def _acquire_lease(self) -> None:
        """Become the one reliable consumer of the queue. Returns without it when stopped."""
        queue, dead = self._queue, ""
        self._leasing = True
        while not self.is_stopping:
            holder = await self._request_lease(dead)
            if holder is None or self.is_stopping:
                return  # ending releases it
            if holder == self._token and queue.bus._claim_lease(queue.name, self):
                queue.leased = True
                queue.bus.keep_alive.add(queue)
                return
            dead = holder if holder != self._token and is_dead(holder) else ""
            if dead:
                continue  # replaced at once, also by those who do not wait
            if not self._options.wait:
                remedy = "Stop that one, or consume with wait=True to take over when it ends"
                found = "has a reliable consumer already"
                if self.names_holder:
                    flow = describe_holder_of(queue.keys, "", holder, describe_holder)
                    try:
                        who = await queue.run(flow)
                    except BusError:  # its token says who it is, too
                        who = describe_holder(holder)
                    found += f" ({who})"
                raise QueueBusy(queue=queue.name, found=found, remedy=remedy)
            await self._sleep_unless_woken(LEASE_POLL_S)

    async def _renew_lost_lease(self) -> None:
        """Renew the lease after it has expired, or was lost with Redis' data."""
        if await self._request_lease("") not in (self._token, None):
            self.lease_lost()

    async def _request_lease(self, dead: str) -> str | None:
        """The reply names the present holder; return None when stopped."""
        found = await self._run_with_retries(
            lambda: reader_operations.lease(
                [self._queue.keys],
                "",
                self._token,
                LEASE_MS,
                [dead],
                self._queue.bus.keep_alive.announcement(),
            )
        )
        return found[0] if found else None

    async def _release_lease(self) -> None:
        queue = self._queue
        if queue.bus._claim_lease(queue.name, self):
            queue.leased = False
            try:
                await queue.run(reader_operations.release(queue.keys, "", self._token))
            finally:
                queue.bus._release_lease(
                    queue.name, self
                )  # not before: another consumption of this bus shares the token
        self._leasing = False

    # -- ending ------------------------------------------------------------------------------------

    async def _release_resources(self) -> None:
        queue = self._queue
        self._pubsub_connection.unsubscribe(queue.keys.available, self._on_notification)
        self._release_room(*self._buffer)
        self._buffer.clear()
        if self._out and (not self._token or queue.bus._claim_lease(queue.name, self)):
            try:
                await self._give_back_messages()
            except BaseException:
                queue.bus._release_lease(
                    queue.name, self
                )  # a later consumption of this bus need not wait: it restores what this one leaves
                raise
        self._out = False
        if self._leasing:
            await self._release_lease()

    async def _give_back_messages(self) -> None:
        """On the link of the takes, which has no patience of its own."""
        queue, retry = self._queue, LinkRetry(asyncio.get_running_loop().time)
        link = queue.bus.servers.takes[queue.server]
        while True:
            try:
                await link.run(
                    flows.give_back(
                        queue.keys, self._record, self._handed, ttl_s=self._ttl_s, token=self._token
                    )
                )
                return
            except LinkLost as error:
                with retry.pausing(error, retry_time_s(link.endpoint, error)) as pause_s:
                    await asyncio.sleep(pause_s)

    # -- inside ------------------------------------------------------------------------------------

    def _release_room(self, *messages: Message) -> None:
        if self._queue.room is not None:
            self._queue.room.release(sum(len(message.value) for message in messages))

    async def _run_with_retries(self, flow: Callable[[], Flow[T]]) -> T | None:
        """Run a flow, again after every LinkLost; return None when the consumption is stopped
        meanwhile.
        """
        while not self.is_stopping:
            try:
                return await self._queue.run(flow())
            except LinkLost as error:
                self._queue._not_touched(error)
        return None

    async def _sleep_unless_woken(self, seconds: float) -> None:
        """Sleep, or until there is something to look at."""
        await wait_at_most(seconds, self._wake.wait)
        self._wake.clear()

    @property
    def _pubsub_connection(self) -> PubSubConnection:
        return self._queue.bus.servers.pubsub[self._queue.server]

    def _on_notification(self, id: bytes | None) -> None:
        """Look for messages, unless the notification is about the message received last, and the
        first about it.

        A second notification with the same id may be of another life of the queue. The very first
        notification always causes a look.
        """
        known = (
            self._noted is not None
            and self._received
            and id == b"%d" % self._received
            and id != self._noted
        )
        self._noted = id
        if not known:
            self._wake.set()


def _batch_reached_queue_end(batch: list[Message]) -> bool:
    """Whether the batch ended because the queue did, not because of its bytes."""
    return sum(len(message.value) for message in batch) < CHUNK_BYTES
