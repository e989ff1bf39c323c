"""Consuming a queue of another bus: messages of the server are kept here until the caller takes
them.

Rule 1. The wire has no way to give a message back. So an unreliable consumption takes ``prefetch``
        messages at a time (``max`` of the protocol), and what it has not handed over when it ends
        is kept for the next one of the same object. Not so from npm servers: they may lose a
        message at every ``max`` and every ``stop`` (protocol Q24), so there it takes what comes.
Rule 2. A reliable one, and one that removes nothing, take what comes; a reader that is slow makes
        the server stop, and goes on later where it was.
Rule 3. A new remote object has no state: reliable messages that were not acked come again, the
        others go on after the last one received.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any

from busmq_spark.bus.queue.base_consumption import (
    BaseConsumption,
    ConsumeOptions,
    IterationPhase,
    reliable_message,
)
from busmq_spark.bus.queue.base_queue import BaseQueue
from busmq_spark.errors import BusError, FederationLost
from busmq_spark.federation.client import checked_values
from busmq_spark.queue.message import Message

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext
    from busmq_spark.federation.client.remote_object_connection import RemoteObjectConnection
    from busmq_spark.federation.client.remote_reconnector import RemoteReconnector

MAX_BUFFERED_MESSAGES = 1000
"""Number of buffered messages at which the server is stopped, or four times ``prefetch`` if that is
more.
"""
MESSAGES_LEFT_TO_ASK_EARLY = 32
MAX_BUFFERED_UNRELIABLE = 100_000
"""The number for consumptions where stopping the server may lose a message."""
RemoteConsumeState = Enum("RemoteConsumeState", "IDLE PROBING CONSUMING PAUSING")
"""The state of the server's consumption, or the requested one. PAUSING: it was told to stop, and
what it was taking just then may still come.
"""
log = logging.getLogger("busmq_spark")


class ConsumedRemoteQueue(BaseQueue):
    """The part of a remote queue that its consumptions share."""

    handle: RemoteReconnector

    def __init__(self, bus: BusContext, name: str) -> None:
        super().__init__(bus, name)
        self.last_acked = 0
        """The highest id that was acked through this object since it was attached."""
        self.undelivered: list[Message] = []
        """Taken from the queue and not handed over by the consumption before: the wire has no way
        back for them.
        """
        self.current: RemoteQueueConsumption | None = None
        """The consumption that has begun last: messages of the server are for it."""
        self.reliable_on: RemoteObjectConnection | None = None
        """The remote object of which a reliable consumption has begun: it understands acks."""


class RemoteQueueConsumption(BaseConsumption):
    """A consumption of a queue on a federated bus."""

    _queue: ConsumedRemoteQueue

    def __init__(self, queue: ConsumedRemoteQueue, options: ConsumeOptions) -> None:
        super().__init__(options)
        self._queue = queue
        self._takes = options.remove and not options.reliable
        self._position = options.index
        self._received = 0
        self._remote: RemoteObjectConnection | None = None
        self._remote_state = RemoteConsumeState.IDLE
        self._skipping = False
        self._from = 0  # acked by the server when it began
        self._begun = asyncio.Event()
        self._failed: BusError | None = None

    async def batches(self) -> AsyncIterator[list[Message]]:
        """The messages in lists of those that were here together."""
        while True:
            try:
                batch = [await self.__anext__()]
            except StopAsyncIteration:
                return
            while (message := self.next_stored()) is not None:
                batch.append(message)
            yield batch

    # -- piece by piece ----------------------------------------------------------------------------

    async def begin(self) -> None:
        """Begin now; a reliable one has then what was not acked before. Returns early when it is
        stopped. Waits while the server is unreachable.
        """
        if self.running or self.is_stopping:
            return
        queue = self._queue
        if (before := self.follows) is not None:
            if not await self._try_take_over(before):
                await before.stop()
            self.follows = None  # not earlier: this may be cancelled on the way
        if not queue.attached:
            await queue.early.wait_open("consume from")
        while self._remote is None and not self.is_stopping:
            try:
                self._remote = await queue.handle.wait_open()
            except FederationLost as error:
                queue._report(error)
        if self.is_stopping:
            return
        self._phase, queue.current = IterationPhase.RUNNING, self
        if self._takes:
            # And nothing more yet: messages that have come cannot go back
            self._adopt_undelivered()
        else:
            self._request_messages()
        while (
            self._remote_state is not RemoteConsumeState.IDLE
            and not self._begun.is_set()
            and not self.is_stopping
        ):
            self._wake.clear()
            await self._wake.wait()
        queue._emit("consuming", True)

    async def wait_filled(self) -> None:
        """Returns when there is a ``head``. Raises StopAsyncIteration at the end."""
        while True:
            if self._buffer and not self.is_stopping:
                return
            if not self.running and not self.is_stopping and self._left != 0:
                await self.begin()
                continue
            if self.is_stopping or self._left == 0:
                await self.stop()
                failed, self._failed = self._failed, None
                raise failed or StopAsyncIteration
            self._wake.clear()
            self._request_messages()
            await self._wake.wait()

    def pop_head(self) -> Message:
        """The head."""
        message = self._buffer.popleft()
        self._queue.handed = max(self._queue.handed, message.id)
        self._queue.consumed += 1
        if self._remote_state is RemoteConsumeState.IDLE:
            self._request_messages_early()
        return reliable_message(message, self._queue) if self._options.reliable else message

    # -- called by the queue, from its remote object -----------------------------------------------

    def on_message(self, message: Message) -> None:
        """A message. A message that came twice, since the server began anew, is dropped."""
        if (
            self._remote_state is RemoteConsumeState.PROBING
        ):  # the oldest of all: from its id follows where the one after the last received stands
            self._position = max(0, self._received + 1 - message.id)
            return
        self._position += 1
        if self._skipping and self._from < message.id <= self._received:
            return
        self._skipping = False
        if self._left == 0:
            if self._takes:
                self._queue.undelivered.append(message)
            return  # else it is still there, or un-acked
        if self._left is not None:
            self._left -= 1
        self._received = message.id
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%r: took id %d", self._queue, message.id)
        self._buffer.append(message)
        self._wake.set()
        if len(self._buffer) >= self._max_buffered:
            self._stop_server_for_now()

    def on_consuming(self, state: bool) -> None:
        """Whether the server consumes for us."""
        if state:
            self._begun.set()
        elif self._remote_state is not RemoteConsumeState.PAUSING:
            probed, self._remote_state = (
                self._remote_state is RemoteConsumeState.PROBING,
                RemoteConsumeState.IDLE,
            )
            if probed:
                self._request_messages(probed=True)
            else:
                self._request_messages_early()
        self._wake.set()  # who waits, asks

    def on_remote_lost(self) -> None:
        """Messages that the server had sent and that were not handed over stay, unless they come
        again.
        """
        self._remote = None
        self._remote_state = RemoteConsumeState.IDLE
        if self._options.reliable:
            if self._left is not None:
                self._left += len(self._buffer)
            self._buffer.clear()
            self._received = 0
        self._wake.set()

    def resume_on(self, remote: RemoteObjectConnection, *, existed: bool) -> None:
        """Go on with a remote object whose queue is attached. A queue that did not exist has new
        ids and positions.
        """
        self._remote = remote
        if not existed:
            self._position = self._received = 0
        self._request_messages()

    def on_failure(self, error: BusError) -> None:
        """The server consumes for us no longer."""
        self._failed, self._remote_state = error, RemoteConsumeState.IDLE
        self._start_stopping()

    # -- inside ------------------------------------------------------------------------------------

    async def _try_take_over(self, before: RemoteQueueConsumption) -> bool:
        """Take over what the server does for the one before, if it is the same: to stop it, only to
        begin anew, would lose what is under way.
        """
        if (older := before.follows) is not None:
            if not await before._try_take_over(older):
                await older.stop()
            before.follows = None
        if not (self._takes and before._takes and before.running):
            return False
        async with before._lock:
            if before._remote_state is not RemoteConsumeState.IDLE:
                self._remote_state = RemoteConsumeState.CONSUMING
                if before._begun.is_set():
                    self._begun.set()
            self._remote, before._remote, before._remote_state = (
                before._remote,
                None,
                RemoteConsumeState.IDLE,
            )
            before._start_stopping()
            self._queue.current = self
            await before._end_once()
        return True

    def _adopt_undelivered(self) -> None:
        """Take over the messages that the previous consumption has left."""
        taken, self._queue.undelivered = self._queue.undelivered, []
        most = len(taken) if self._left is None else min(self._left, len(taken))
        self._buffer.extend(taken[:most])
        self._queue.undelivered = taken[most:]
        if self._left is not None:
            self._left -= most

    def _request_messages_early(self) -> None:
        """Before the last message is handed over. A consumption with a small prefetch asks later:
        other consumers may take those messages.
        """
        if self._buffer and (
            self.prefetch >= MESSAGES_LEFT_TO_ASK_EARLY or not self._is_requested_in_parts
        ):
            self._request_messages()

    @property
    def _max_buffered(self) -> int:
        return (
            MAX_BUFFERED_UNRELIABLE
            if self._takes
            else max(MAX_BUFFERED_MESSAGES, 4 * self.prefetch)
        )

    @property
    def _is_requested_in_parts(self) -> bool:
        return self._takes and self._remote is not None and self._remote.ours

    def _request_messages(self, *, probed: bool = False) -> None:
        """Have the server consume for us, when it does not, and there is room."""
        options, left, waiting, state = (
            self._options,
            self._left,
            len(self._buffer),
            RemoteConsumeState.CONSUMING,
        )
        if (
            self._remote is None
            or self._remote_state is not RemoteConsumeState.IDLE
            or self.is_stopping
            or not self.running
        ):
            return
        if self._is_requested_in_parts:
            if left == 0 or waiting * 2 > self.prefetch:
                return
            most = self.prefetch - waiting
            asked: dict[str, Any] = {"max": most if left is None else min(most, left)}
        elif self._takes and waiting <= self.prefetch:
            asked = {} if left is None else {"max": left}
        elif left == 0 or waiting > self.prefetch:
            return
        elif options.reliable:
            last = max(options.last, self._queue.last_acked)
            again = max(0, self._received - last)
            asked = (
                {"reliable": True, "last": last}
                if left is None
                else {"reliable": True, "last": last, "max": left + again}
            )
            self._skipping, self._from = bool(again), last
            self._queue.reliable_on = self._remote
        elif self._received and not probed:
            asked, state = {"remove": False, "index": 0, "max": 1}, RemoteConsumeState.PROBING
        else:
            asked = (
                {"remove": False, "index": self._position}
                if left is None
                else {"remove": False, "index": self._position, "max": left}
            )
            self._skipping, self._from = bool(self._received), 0
        self._remote_state = state
        self._remote.call_without_reply("consume", asked)

    def _stop_server_for_now(self) -> None:
        if self._remote_state is RemoteConsumeState.CONSUMING and self._remote is not None:
            remote, self._remote_state = self._remote, RemoteConsumeState.PAUSING
            remote.call_without_reply("stop")
            # Not before what the server was taking just then has come: after a new beginning it
            # would come out of turn.
            remote.call_for_result("count").add_done_callback(
                lambda _: self._on_server_paused(remote)
            )
            if self._takes:
                log.warning(
                    "queue %r: its reader is slow, so the npm server stops for a while, and may"
                    " lose a message",
                    self._queue.name,
                )

    def _on_server_paused(self, remote: RemoteObjectConnection) -> None:
        if remote is self._remote and self._remote_state is RemoteConsumeState.PAUSING:
            self._remote_state = RemoteConsumeState.IDLE
            self._request_messages_early()
            self._wake.set()

    def _may_receive_more(self) -> bool:
        return self._is_requested_in_parts and self._remote_state is not RemoteConsumeState.IDLE

    async def _sleep_before_retry(self) -> None:
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await self._wake.wait()

    async def _release_resources(self) -> None:
        remote = self._remote
        if self._remote_state is not RemoteConsumeState.IDLE and remote is not None:
            with suppress(
                BusError
            ):  # the remote object is lost, and with it the consumption over there
                while self._may_receive_more() and checked_values.expect_first_number(
                    await remote.call_for_result("count"), "a count"
                ):
                    # The part ends by itself; npm servers lose a message that they are just taking
                    # when they stop (protocol Q24)
                    await self._sleep_before_retry()
                remote.call_without_reply("stop")
                await remote.call_for_result(
                    "count"
                )  # after it: messages that the server was taking just then have come, too
        self._remote_state = RemoteConsumeState.IDLE
        if self._takes:
            self._queue.undelivered = [*self._buffer, *self._queue.undelivered]
        self._buffer.clear()
