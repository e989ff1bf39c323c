"""A queue of another bus, with the methods of one of this bus (``bus/queue/queue.py``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from busmq_spark.arguments import check_items
from busmq_spark.bus.queue.base_consumption import ConsumeKeywords, ConsumeOptions
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
from busmq_spark.federation.client import checked_values
from busmq_spark.federation.client.consume import ConsumedRemoteQueue, RemoteQueueConsumption
from busmq_spark.federation.client.push_pipeline import RemotePushPipeline, decode_utf8
from busmq_spark.federation.client.remote_object_connection import error_from_event
from busmq_spark.federation.client.remote_reconnector import RemoteObjectListener, RemoteReconnector
from busmq_spark.federation.npm_wire.creation_message import make_creation
from busmq_spark.option_parsing import from_call
from busmq_spark.queue.message import encode_value
from busmq_spark.queue.queue import check_id

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext
    from busmq_spark.federation.client.remote_object_connection import RemoteObjectConnection
    from busmq_spark.federation.client.web_socket_pool import WebSocketPool

ERRORS_THAT_END_CONSUMING = (QueueBusy, MessageRefused, FederationRefused)
"""Errors with which a server of ours reports that it consumes no longer."""
log = logging.getLogger("busmq_spark")


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
            pool, make_creation("queue", name), bus.spawn, self, self._restore
        )
        self._attach_options: _AttachOptions | None = None
        self._existed = False
        self._failing: asyncio.Future[list[Any]] | None = None
        self._pushes = RemotePushPipeline(self.handle, "push", name, bus.spawn, self._count_push)

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
            self.bus.adopt(self)
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
            self.bus.check_loop()
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
        return checked_values.expect_first_number(
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
        return checked_values.expect_texts_by_name(
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
            self.current.on_message(checked_values.make_message(text, id))

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
            log.warning(
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
        return checked_values.expect_first_number(found, "a number")
    except WireError:
        return None
