"""A queue of another bus, with the methods of one of this bus (``bus/queue/queue.py``).

Consuming a queue of another bus: messages of the server are kept here until the caller takes
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
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from busmq_spark.arguments import check_items
from busmq_spark.bus.queue.base_consumption import (
    BaseConsumption,
    ConsumeKeywords,
    ConsumeOptions,
    IterationPhase,
    reliable_message,
)
from busmq_spark.bus.queue.base_queue import DEFAULT_QUEUE_TTL_S, BaseQueue
from busmq_spark.errors import (
    BusError,
    ConfigError,
    FederationLost,
    FederationRefused,
    MessageRefused,
    QueueBusy,
    StateError,
    WireError,
)
from busmq_spark.federation.client import remote_object_connection
from busmq_spark.federation.client.remote_object_connection import error_from_event
from busmq_spark.federation.client.remote_reconnector import (
    RemoteObjectListener,
    RemotePushPipeline,
    RemoteReconnector,
    decode_utf8,
)
from busmq_spark.federation.npm_wire.channels import make_creation
from busmq_spark.option_parsing import from_call
from busmq_spark.queue.message import Message, encode_value
from busmq_spark.queue.queue import check_id

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext
    from busmq_spark.federation.client.remote_object_connection import RemoteObjectConnection
    from busmq_spark.federation.client.web_socket_pool import WebSocketPool


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
                while self._may_receive_more() and remote_object_connection.expect_first_number(
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


ERRORS_THAT_END_CONSUMING = (QueueBusy, MessageRefused, FederationRefused)
"""Errors with which a server of ours reports that it consumes no longer."""


class _AttachOptions(NamedTuple):
    ttl_s: int
    maxsize: int
    discoverable: bool


class RemoteQueue(ConsumedRemoteQueue, RemoteObjectListener):
    """A queue on a federated bus. Names, results and errors are those of Queue, where the wire
    allows.

    Further events: ``reconnecting(error)`` and ``reconnected``. While the server is unreachable,
    calls wait 8 s and then raise FederationLost; a queue that is attached is attached again, and
    consumed from where it was. Values must be text: bytes that are no UTF-8 are refused.
    """

    events = (*BaseQueue.events, "reconnecting", "reconnected")
    _consumption: RemoteQueueConsumption | None

    def __init__(self, bus: BusContext, name: str, pool: WebSocketPool) -> None:
        super().__init__(bus, name)
        self.handle = RemoteReconnector(
            pool, make_creation("queue", name), bus._spawn, self, self._restore
        )
        self._attach_options: _AttachOptions | None = None
        self._existed = False
        self._failing: asyncio.Future[list[Any]] | None = None
        self._pushes = RemotePushPipeline(self.handle, "push", name, bus._spawn, self._count_push)

    def __repr__(self) -> str:
        return f"RemoteQueue({self.name!r}, {self.handle.url!r})"

    # -- life --------------------------------------------------------------------------------------

    async def _attach(self, ttl_s: int, maxsize: int, *, discoverable: bool) -> bool:
        async with self._lock:
            if self.attached:
                raise StateError(
                    event="attach",
                    what=f"queue {self.name!r}",
                    state="attached already",
                    remedy="Detach it first",
                )
            self._emit("attaching")
            self.handle.close()  # a remote object that has only asked
            self._attach_options, self.last_acked, self.handed, self.reliable_on = (
                _AttachOptions(ttl_s, maxsize, discoverable),
                0,
                0,
                None,
            )
            try:
                await self.handle.wait_open()
            except BaseException:
                self._attach_options, self.ttl_s = None, 0
                self.handle.close()
                raise
            self.handle.keep_open, self.discoverable = True, discoverable
            self.bus._adopt(self)
            self.early.make()
            existed = self._existed
        self._emit("attached", existed)
        return existed

    async def detach(self) -> None:
        """Detach, like Queue.detach. Messages that were taken and not handed over are lost, unless
        the consumption was reliable: the wire has no way back.
        """
        await self.early.let_begin()
        async with self._lock:
            if not self.attached:
                return
            self._emit("detaching")
            try:
                await self.stop()
                await self._pushes.wait_flushed()
                await self.handle.end_and_wait("detach", "detached")
            finally:
                self._leave()
        self._emit("detached")

    async def delete(self) -> None:
        """Delete, like Queue.delete."""
        if not self.attached:
            await self.attach(ttl_s=DEFAULT_QUEUE_TTL_S)
        async with self._lock:
            self._emit("detaching")
            try:
                await self.stop()
                await self._pushes.wait_flushed()
                await self.handle.wait_open()
                await self.handle.end_and_wait("close", "closed")
            finally:
                self._leave()
        self._emit("detached")
        self._emit("deleted")

    # -- pushing -----------------------------------------------------------------------------------

    def push(self, value: object) -> asyncio.Future[int]:
        """Push, like Queue.push. The future fails with FederationLost when the link broke and it is
        unknown whether the message is stored.
        """
        return self._push_when_attached([decode_utf8(encode_value(value))], single=True)

    def push_many(self, values: Iterable[object]) -> asyncio.Future[list[int]]:
        """Push many, like Queue.push_many: one call for each, many under way."""
        texts = [decode_utf8(encode_value(value)) for value in check_items("values", values)]
        return self._push_when_attached(texts, single=False)

    def _push_when_attached(self, texts: list[str], *, single: bool) -> asyncio.Future[Any]:
        if self.attached and not self.early.waiting:
            self.bus._check_loop()
            return self._pushes.add(texts, single=single)
        return self.early.add("push to", lambda: self._pushes.add(texts, single=single))

    # -- consuming ---------------------------------------------------------------------------------

    def consume(self, **options: Unpack[ConsumeKeywords]) -> RemoteQueueConsumption:
        """Consume, like Queue.consume, with two limits of the wire. Messages taken when a
        consumption ends go to the next one of this object and not back to the queue; these are at
        most ``prefetch`` messages, and none when it is reliable. On an npm server a reliable
        consumption also takes what other consumers have not acked. ``wait=False`` is refused.
        """
        self._need_attaching("consume from")
        asked = from_call(ConsumeOptions, "consume", options)
        if not asked.wait:
            raise ConfigError(
                reason=(
                    "wait=False cannot be said over federation: a reliable consumer waits for the"
                    " one before it to end"
                )
            )
        before, self._consumption = self._consumption, RemoteQueueConsumption(self, asked)
        self._consumption.follows = before
        return self._consumption

    async def ack(self, last: int) -> None:
        """Ack, like Queue.ack, messages that a reliable consumption of this object has handed over.
        Returns when the server has executed it.
        """
        check_id(last)
        self._need_attached("ack on")
        if self.reliable_on is None:
            raise self._not_reliable(
                "Consume with reliable=True first; its option last acks what an earlier"
                " consumer had"
            )
        last = min(
            last,
            self.handed,
            # A later consumption begins with what was acked: messages that come later must not be
            # among it
        )
        self.last_acked = max(self.last_acked, last)
        while True:
            remote = await self.handle.wait_open()
            if (
                remote is not self.reliable_on
            ):  # a new one, on which nothing is consumed: Node dies of an ack there
                self.reliable_on = remote
                remote.call_without_reply(
                    "consume", {"reliable": True, "max": 0, "last": self.last_acked}
                )
            remote.call_without_reply("ack", last)
            try:
                await remote.call_for_result(
                    "count"
                )  # acks are never answered (protocol 1.9); this goes the same way after it
                log.debug("%r: acked up to id %d", self, last)
                return
            except FederationLost:
                continue

    # -- asking ------------------------------------------------------------------------------------

    async def count(self) -> int:
        """Count messages, like Queue.count."""
        return remote_object_connection.expect_first_number(
            await self.handle.call_for_result("count"), "a count"
        )

    async def flush(self) -> bool:
        """Flush, like Queue.flush."""
        return bool((await self.handle.call_for_result("flush"))[0])

    async def exists(self) -> bool:
        """Check, like Queue.exists."""
        return bool((await self.handle.call_for_result("exists"))[0])

    async def ttl(self) -> int | None:
        """Return the ttl, like Queue.ttl."""
        return _number_or_none(await self.handle.call_for_result("ttl"))

    async def maxsize(self) -> int:
        """Return the maxsize, like Queue.maxsize."""
        return _number_or_none(await self.handle.call_for_result("maxsize")) or 0

    async def find(self) -> str | None:
        """Find the queue, like Queue.find, by the other bus: ``local`` means that it has the
        queue.
        """
        found = await self.handle.call_for_result("find")
        return str(found[0]) if found and found[0] else None

    async def metadata(self) -> dict[str, str]:
        """Return the metadata, like Queue.metadata."""
        return remote_object_connection.expect_texts_by_name(
            await self.handle.call_for_result("metadata"), "metadata"
        )

    async def set_metadata(self, fields: Mapping[str, object]) -> None:
        """Set metadata, like Queue.set_metadata."""
        self._check_fields(fields)
        self._need_attached("set metadata of")
        if fields:
            await self.handle.call_for_result(
                "metadata", {name: str(value) for name, value in fields.items()}
            )

    # -- inside ------------------------------------------------------------------------------------

    def on_remote_lost(self, why: BusError) -> None:
        """The link broke; see remote_reconnector.RemoteObjectListener."""
        if self.current is not None:
            self.current.on_remote_lost()
        if self.attached:
            self._emit("reconnecting", why)

    def on_remote_restored(self) -> None:
        """Attached again, and consuming."""
        self._emit("reconnected")

    def on_remote_failed(self, error: BusError) -> None:
        """Report an error that no caller awaits."""
        if self.current is not None and not self.handle.keep_open:
            self.current.on_failure(error)
        self._report(error)

    async def _restore(self, remote: RemoteObjectConnection) -> None:
        remote.on(
            "error", self._on_remote_error
        )  # first: an error event without a listener ends a Node server
        if self._attach_options is None:
            await remote.call_for_result(
                "exists"
            )  # finds the queue's server; without it Node dies of every other question
            return
        answered = self._failing = remote.next_event("attached")
        remote.on("message", self._on_message)
        remote.on("consuming", self._on_consuming)
        options = self._attach_options
        remote.call_without_reply(
            "attach",
            {
                "ttl": options.ttl_s,
                "maxsize": options.maxsize,
                "discoverable": options.discoverable,
            },
        )
        self._existed = (await answered)[:1] == [True]
        self._failing = None
        # npm's go by the maxsize that we attach with, and old ones die of the question.
        asked = [
            remote.call_for_result("ttl"),
            *([remote.call_for_result("maxsize")] if remote.ours else []),
        ]
        ttl, *maxsize = [_number_or_none(found) for found in await asyncio.gather(*asked)]
        self.ttl_s, self._pushes.maxsize = (
            ttl or options.ttl_s,
            max(options.maxsize, *[known or 0 for known in maxsize], 0),
        )
        if self.current is not None:
            self.current.resume_on(remote, existed=self._existed)
        asyncio.get_running_loop().call_soon(self._pushes.send_waiting)

    def _on_message(self, text: Any = None, id: Any = None, *_: Any) -> None:
        if self.current is not None:
            self.current.on_message(remote_object_connection.make_message(text, id))

    def _on_consuming(self, state: Any = False, *_: Any) -> None:
        if self.current is not None:
            self.current.on_consuming(bool(state))

    def _on_remote_error(self, found: Any = None, *_: Any) -> None:
        error = error_from_event(found)
        if self._failing is not None and not self._failing.done():
            self._failing.set_exception(error)
        elif (
            isinstance(error, ERRORS_THAT_END_CONSUMING)
            and self.current is not None
            and self.current.running
        ):
            self.current.on_failure(error)
        else:
            self._report(error)

    def _leave(self) -> None:
        if self.undelivered:
            log.error(
                "queue %r: %d messages were taken and not handed over, and federation has no way"
                " back",
                self.name,
                len(self.undelivered),
            )
        self.undelivered = []
        self._attach_options, self._consumption, self.current, self.ttl_s = None, None, None, 0
        self.handle.close()
        self.bus.release(self)

    def _count_push(self) -> None:
        self.pushed += 1


def _number_or_none(found: list[Any]) -> int | None:
    """Return None for a queue that does not exist, or when the reply is no number."""
    try:
        return remote_object_connection.expect_first_number(found, "a number")
    except WireError:
        return None
