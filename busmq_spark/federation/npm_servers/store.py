"""The source's store on a federation server that speaks busmq's own protocol only, as npm's does:
slower than bulk, and limited to that wire.

It reads without removing, removes what is acknowledged, notices what is lost (see queue.py), and
keeps one reader of ours from another. It cannot list queues, keep subscriptions, or write exactly
once. It cannot see other consumers of a queue. Satisfies ReadStore, and as much of WriteStore as
at-least-once needs; one thread may use one.

The store of a federation server of either kind: over bulk where the server speaks it, else over
busmq's own protocol.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any, NoReturn, Protocol, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from busmq_spark.errors import (
    ConfigError,
    FederationRefused,
    LinkLost,
    MessageRefused,
    QueueExpired,
    QueueRecreated,
)
from busmq_spark.federation.address import CONNECT_TIMEOUT_S, FederationAddress
from busmq_spark.federation.bulk.client import FederationPushListenerThread
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.federation.client.socket import FederationTarget
from busmq_spark.federation.client.web_socket_pool import WebSocketPool
from busmq_spark.federation.npm_servers.npm_queue import (
    NO_LOSS_CAUSE_EVIDENCE,
    FederationNpmQueue,
    Message,
    RemoteNpmQueue,
    encode_text,
)
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import Position, Range
from busmq_spark.queue.queue import AttachResult
from busmq_spark.reading.reader_operations import AckResult, QueueState
from busmq_spark.reading.times_of_ids import TimesOfIds
from busmq_spark.redis_io.event_loops import LoopTimeout
from busmq_spark.redis_io.queue_location import no_pause
from busmq_spark.redis_io.retry import LinkRetry
from busmq_spark.store.protocol import (
    ConsecutiveMessages,
    FullQueueWait,
    LossCauseEvidence,
    PushListeners,
    QueueCreateOptions,
    ReadStore,
    SinkAppender,
    WriteStore,
)
from busmq_spark.writing.sink import StagedList
from busmq_spark.writing.sink_runs import SinkRun

FIRST_QUESTION_ROWS, MAX_QUESTION_ROWS, TARGET_QUESTION_BYTES = 16, 2000, 1024 * 1024
"""Messages in one question: few while their size is not known, then about so many bytes. The server
holds what is not read yet in its memory.
"""
MAX_QUEUES_ASKED_AT_ONCE = 100
"""Queues that are asked about at the same time."""
T = TypeVar("T")
log = logging.getLogger("busmq_spark")


@dataclass(frozen=True, slots=True)
class _TargetWithSparkTls(FederationTarget):
    """The same address with the TLS settings of Spark's options."""

    context: SSLContext | None = None

    @property
    def ssl_context(self) -> SSLContext | None:
        return self.context


class FederationNpmStore:
    """A thread of its own runs the link, so that heartbeats go on between calls, and attached
    queues stay alive.
    """

    def __init__(self, address: FederationAddress) -> None:
        self.address = address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="busmq-plain-link", daemon=True
        )
        self._thread.start()
        secure = address.parse_url().secure
        target = _TargetWithSparkTls(
            address.url,
            address.secret,
            None,
            address.secret_in_url,
            context=address.make_ssl_context() if secure else None,
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pool = WebSocketPool(target, 1, self._spawn)
        self._queues: dict[str, FederationNpmQueue] = {}

    def connect(self) -> bool:
        """Whether a server of ours is there, and not npm's. Raises FederationLost, and
        FederationRefused where the secret is not known.
        """
        return self._ask_with_patience(self._is_our_server)

    def keys(self, queue: str) -> QueueKeys:
        return QueueKeys(queue)

    def locate(self, queues: Sequence[str]) -> Mapping[str, int]:
        return dict.fromkeys(queues, 0)

    def discover(
        self,
        accept: Callable[[str], bool],  # noqa: ARG002  # as the protocol has it
        pace: Callable[[], object] = no_pause,  # noqa: ARG002
    ) -> NoReturn:
        """The wire lists no queues."""
        raise self.impossible_error(
            "it cannot list its queues; name them in option 'subscribe' instead of"
            " 'subscribePattern'"
        )

    # As the protocol has it
    def topic_queues(self, topics: Sequence[str], partitions: int | None = None) -> NoReturn:  # noqa: ARG002
        """Nor topics."""
        raise self.impossible_error(
            "it knows no topics; name the partition queues in option 'subscribe'"
        )

    def attach(
        self, queues: Sequence[str], creation: QueueCreateOptions
    ) -> Mapping[str, AttachResult]:
        return self._ask_each(queues, lambda queue: queue.attach(creation))

    def states(self, wanted: Mapping[str, int]) -> Mapping[str, QueueState]:
        return self._ask_each(list(wanted), lambda queue: queue.state(wanted[queue.name]))

    def marks(self, ids: Mapping[str, int]) -> Mapping[str, str]:
        return self._ask_each(list(ids), lambda queue: queue.mark(ids[queue.name]))

    def counters(self, queues: Sequence[str]) -> Sequence[object]:
        found = self._ask_each(queues, lambda queue: queue.newest_id())
        return [found[queue] for queue in queues]

    def note_times(self, queues: Sequence[str]) -> Mapping[str, int]:
        return dict.fromkeys(queues, 0)

    # As the protocol has it
    def find_times(self, wanted: Mapping[str, int]) -> NoReturn:  # noqa: ARG002
        raise self.impossible_error(
            "its queues have no clock; begin at earliest, latest, an id or with the newest messages"
        )

    def times(self, ids: Mapping[str, tuple[int, int]]) -> Mapping[str, TimesOfIds]:
        """The wire shows none."""
        return dict.fromkeys(ids, TimesOfIds("", ()))

    def ages(self, ids: Mapping[str, int]) -> Mapping[str, int]:
        """The wire shows none."""
        return dict.fromkeys(ids, -1)

    def ack(self, positions: Mapping[str, Position], subscription: str) -> Mapping[str, AckResult]:
        self._refuse_subscription(subscription)
        return self._ask_each(list(positions), lambda queue: queue.ack(positions[queue.name]))

    # As the protocol has it
    def subscribe(self, starts: Mapping[str, str | int], subscription: str) -> NoReturn:  # noqa: ARG002
        raise self._no_subscriptions_error()

    def subscriptions(self, queues: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        return {queue: {} for queue in queues}

    def lease(
        self, queues: Sequence[str], subscription: str, token: str, dead: Mapping[str, str]
    ) -> Mapping[str, str]:
        self._refuse_subscription(subscription)
        return self._ask_each(queues, lambda queue: queue.lease(token, dead.get(queue.name, "")))

    def holders(self, queues: Sequence[str], subscription: str) -> Mapping[str, str]:
        """The wire shows none."""
        self._refuse_subscription(subscription)
        return dict.fromkeys(queues, "")

    # As the protocol has it
    def keep_alive(self, queues: Sequence[str], subscription: str, token: str) -> Mapping[str, int]:  # noqa: ARG002
        return self._ask_each(queues, lambda queue: queue.keep_alive(token))

    def traces(self, queue: str) -> LossCauseEvidence:  # noqa: ARG002  # as the protocol has it
        """The wire shows none: which client removed messages is unknown."""
        return NO_LOSS_CAUSE_EVIDENCE

    def bytes_until(self, queue: str, first: int, last: int, budget: int) -> tuple[int, int]:
        """Messages are fetched to be measured: the wire has no sizes."""
        reached, used = first - 1, 0
        born = self.states({queue: -1})[queue].born
        for rows in self.read(Range(queue, born, first, last), fail_on_data_loss=False):
            for id, size in enumerate(pc.binary_length(rows.values).to_pylist(), rows.first):
                if used + size > budget:
                    return reached, used
                reached, used = id, used + size
        return last, used

    def read_many(
        self, parts: Sequence[Range], fail_on_data_loss: bool
    ) -> Iterator[ConsecutiveMessages]:
        """Read one range after the other: the wire can do no better."""
        for part in parts:
            yield from self.read(part, fail_on_data_loss)

    def read(self, part: Range, fail_on_data_loss: bool) -> Iterator[ConsecutiveMessages]:
        """While one piece is worked on the next is fetched."""
        queue, need, most = self._queue(part.queue), part.first, FIRST_QUESTION_ROWS

        async def rows(at: int | None = None) -> tuple[list[Message], int]:
            async with queue.lock:
                return await queue.read_rows(part, need, most, fail_on_data_loss, at)

        coming = self._start_in_loop(rows())
        try:
            while True:
                run, at = self._ask_with_patience(rows, coming)
                if not run:
                    return
                values = [encode_text(text) for _, text in run]
                need = run[-1][0] + 1
                most = max(
                    1,
                    min(
                        MAX_QUESTION_ROWS,
                        4 * most,
                        TARGET_QUESTION_BYTES * len(values) // max(1, sum(map(len, values))),
                    ),
                )
                if need <= part.last:
                    coming = self._start_in_loop(rows(at))
                yield ConsecutiveMessages(part.queue, run[0][0], pa.array(values, pa.binary()))
                if need > part.last:
                    return
        except (QueueExpired, QueueRecreated) as loss:
            if fail_on_data_loss:
                raise
            log.warning("%s; skipped", loss)
        finally:
            coming.cancel()

    def push(self, queue: str, left: list[str]) -> int:
        """Push, like FederationNpmQueue.push. Pushes that were under way when the link broke are
        sent again.
        """

        async def push() -> int:
            asked = self._queue(queue)
            async with asked.lock:
                return await asked.push(left)

        return self._ask_with_patience(push)

    def push_from(
        self,
        queue: str,
        sender: str,  # noqa: ARG002  # as of others
        sequences: Sequence[int],  # noqa: ARG002
        values: Sequence[bytes],
    ) -> tuple[int, int]:
        """Push, like a RedisStore, but at least once: the wire remembers no sender."""
        left = [expect_text_value(queue, value) for value in values]
        try:
            maxsize = self.push(queue, left)
        except LinkLost:
            if len(left) == len(values):
                raise
            maxsize = 0  # some are stored: the rest may be sent again, and those need not be
        return len(values) - len(left), maxsize if left else 0

    # As the protocol has it
    def partitions(self, topic: str, create: int | None = None) -> NoReturn:  # noqa: ARG002
        """The server knows no topics."""
        raise self.impossible_error("it knows no topics; name the partition queues in column queue")

    def take_commands(self, queue: str) -> None:
        """A queue there has no groups."""

    def event_queues(self, _: Sequence[Sequence[str]]) -> None:
        """The server keeps no subscriptions."""

    def subscribe_events(self, queue: str, patterns: Sequence[str], end: bool) -> None:
        """The server keeps none: who asks keeps them."""

    def appender(self) -> FederationNpmSinkAppender:
        return FederationNpmSinkAppender(self)

    def refuse_exactly_once(self, *_: Any) -> NoReturn:
        """Raises ConfigError: nothing is written exactly once."""
        raise self.impossible_error(
            "nothing is written exactly once, or instead of something else; set"
            " delivery=at-least-once and mode append"
        )

    begin = renew = record = sink_state = commit = forget = truncate = refuse_exactly_once

    def recorded(self, *_: Any) -> tuple[StagedList, ...]:
        return ()

    def discard(self, *_: Any) -> None:
        """Nothing is staged."""

    def close(self) -> None:
        """Say good-bye, and end the thread."""
        if self._loop.is_closed():
            return
        with suppress(TimeoutError):
            self._start_in_loop(self._end_tasks()).result(CONNECT_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def impossible_error(self, reason: str) -> ConfigError:
        """The error for what the wire has not."""
        return ConfigError(
            reason=(
                f"the federation server at {self.address.url} speaks busmq's own protocol only, as"
                f" npm's does: {reason}"
            )
        )

    # -- in the thread -----------------------------------------------------------------------------

    async def _is_our_server(self) -> bool:
        try:
            async with LoopTimeout(CONNECT_TIMEOUT_S):
                return (await self._pool.wait_for_open_sockets())[0].is_ours
        except TimeoutError:
            raise self._pool.last_error from None

    async def _end_tasks(self) -> None:
        await self._pool.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _open(self, queue: str, texts: bool) -> RemoteNpmQueue:
        return await RemoteNpmQueue.open(self._pool, queue, CONNECT_TIMEOUT_S, texts=texts)

    async def _ask_all(
        self, queues: Sequence[str], ask: Callable[[FederationNpmQueue], Awaitable[T]]
    ) -> list[T]:
        """All are waited for, also when one fails: on none of them may two questions be under
        way.
        """
        limit = asyncio.Semaphore(MAX_QUEUES_ASKED_AT_ONCE)

        async def one(queue: FederationNpmQueue) -> T:
            async with limit, queue.lock:
                return await ask(queue)

        found = await asyncio.gather(
            *(one(self._queue(name)) for name in queues), return_exceptions=True
        )
        for error in found:
            if isinstance(error, BaseException):
                raise error
        return found  # type: ignore[return-value]  # any other value is an answer

    def _spawn(self, coroutine: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        task = self._loop.create_task(coroutine, name=what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- from outside ------------------------------------------------------------------------------

    def _queue(self, name: str) -> FederationNpmQueue:
        if name not in self._queues:
            self._queues[name] = FederationNpmQueue(name, self._open)
        return self._queues[name]

    def _ask_each(
        self, queues: Sequence[str], ask: Callable[[FederationNpmQueue], Awaitable[T]]
    ) -> dict[str, T]:
        return dict(
            zip(queues, self._ask_with_patience(lambda: self._ask_all(queues, ask)), strict=True)
        )

    def _start_in_loop(self, asked: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(asked, self._loop)

    def _ask_with_patience(
        self, ask: Callable[[], Coroutine[Any, Any, T]], coming: Future[T] | None = None
    ) -> T:
        """The answer; asked again while the link breaks, with the patience of the address.
        Everything here is made for that.
        """
        retry = LinkRetry(time.monotonic)
        while True:
            try:
                return (coming or self._start_in_loop(ask())).result()
            except LinkLost as error:
                coming = None
                with retry.pausing(error, self.address.patience_s) as pause_s:
                    time.sleep(pause_s)

    def _refuse_subscription(self, subscription: str) -> None:
        if subscription:
            raise self._no_subscriptions_error()

    def _no_subscriptions_error(self) -> ConfigError:
        return self.impossible_error(
            "it keeps no subscriptions; leave option 'subscription' out, and read each of its"
            " queues with one query"
        )


class FederationNpmSinkAppender(SinkAppender):
    """Writes of one task to a server of npm busmq."""

    def __init__(self, store: FederationNpmStore) -> None:
        self._store = store

    def stage(
        self,
        queue: str,  # noqa: ARG002  # as the protocol has it
        key: str,  # noqa: ARG002
        values: Sequence[bytes],  # noqa: ARG002
        run: SinkRun | None = None,  # noqa: ARG002
    ) -> NoReturn:
        """Refuse: exactly-once delivery needs more than the wire has."""
        self._store.refuse_exactly_once()

    def push(self, queue: str, values: Sequence[bytes], full: FullQueueWait) -> None:
        """Append values to the queue. Pushes under way when the link breaks are sent again, since
        it is unknown whether they are stored.
        """
        left = [expect_text_value(queue, value) for value in values]
        while left:
            before = len(left)
            maxsize = self._store.push(queue, left)
            if len(left) < before:
                full.restart_deadline()
            if left:
                full.wait_for_room(queue, maxsize, len(left))

    def wait_until_stored(self) -> None:
        """Nothing is under way between calls."""

    def finish(self) -> list[StagedList]:
        """Nothing is staged."""
        return []

    def discard(self) -> None:
        """Nothing is staged."""

    def abandon(self) -> None:
        """Nothing is under way between calls."""


def expect_text_value(queue: str, value: bytes) -> str:
    """A value as the wire carries it. Raises MessageRefused for what is no UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        reason = (
            f"a message for queue {queue!r} is no UTF-8 at byte {error.start}, and the protocol of"
            " npm busmq carries text only; encode it"
        )
        raise MessageRefused(reason=reason) from None


STATUSES_WITHOUT_BULK = (401, 101)
"""The answers of npm's server to a bulk handshake: it reads the secret from the URL only, and has
no subprotocols. But 401 may come from anything on the way: the secret goes into the URL only where
that was asked for.
"""


class FederationStore(ReadStore, WriteStore, Protocol):
    """The store of a link."""

    def push_listeners(self, notified: threading.Event) -> list[PushListeners]:
        """Return the threads that wake an idle reader, not started."""
        ...


class FederationProtocolDetectingStore:
    """The first call finds out which kind the server is, once. Satisfies FederationStore through
    the store found, hence the cast.
    """

    def __init__(self, address: FederationAddress) -> None:
        self.address = address
        self._bulk = FederationBulkStore(address)
        self._found: FederationBulkStore | FederationNpmStore | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._detect(), name)

    def push_listeners(self, notified: threading.Event) -> list[FederationPushListenerThread]:
        """Return the push listeners of the store; nothing is connected yet."""
        return self._bulk.push_listeners(notified)

    def close(self) -> None:
        """Close the open store."""
        (self._found or self._bulk).close()

    def _detect(self) -> FederationBulkStore | FederationNpmStore:
        if self._found is None:
            try:
                self._bulk.connect()
                self._found = self._bulk
            except FederationRefused as refused:
                status = refused.details.get("status")
                if status not in STATUSES_WITHOUT_BULK or (
                    status == 401 and not self.address.secret_in_url
                ):
                    raise
                self._found = self._make_npm_store(refused)
        return self._found

    def _make_npm_store(self, refused: FederationRefused) -> FederationNpmStore:
        """Raises ``refused`` when the server does not know the secret in this protocol either, or
        is one of ours.
        """
        plain = FederationNpmStore(self.address)
        with ExitStack() as undo:
            undo.callback(plain.close)
            try:
                ours = plain.connect()
            except FederationRefused:
                raise refused from None
            if ours:
                raise refused
            undo.pop_all()
        log.info(
            "the federation server at %s has no bulk protocol (npm busmq): it is read over busmq's"
            " own, which is slower",
            self.address.url,
        )
        return plain


def open_detected(address: FederationAddress) -> FederationStore:
    """A new store; nothing is connected yet. Raises ConfigError for a bad address."""
    return cast(FederationStore, FederationProtocolDetectingStore(address))
