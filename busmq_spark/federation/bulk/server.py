"""Serves ``busmq.bulk.v1`` on web sockets that a federation server has let in. The store is
synchronous and runs in a few threads.

Rule 1. Calls of one connection are worked off in their order, on one store. Range reads run beside
        them, each on a store of its own.
Rule 2. A connection costs bounded memory: calls in flight are counted, a read holds two replies of
        Redis, and only as many ROWS are sent as the peer gave credit for. A peer that takes nothing
        off the wire for ``send_s``, or gives a read no credit for as long, is cut off.
Rule 3. If a connection ends, its reads stop at their next step and its stores are closed once no
        thread uses them (store_executor.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from time import monotonic
from types import TracebackType
from typing import Any, Self

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from busmq_spark.bus.waiting import wait_at_most
from busmq_spark.errors import BusError, FederationRefused, LinkLost, WireError
from busmq_spark.federation import error_codec
from busmq_spark.federation.bulk import frames
from busmq_spark.federation.bulk.frames import BulkFrameKind, BulkProtocolFrame, encode_error
from busmq_spark.federation.bulk.operations import (
    OPERATIONS,
    RpcOperation,
    RpcTarget,
    ServerHello,
)
from busmq_spark.federation.bulk.row_frames import (
    MAX_RANGES_PER_READ,
    RangeReadFrameProducer,
    ask_spans_and_stored_ranges,
)
from busmq_spark.federation.bulk.rpc_handler import check_rights_and_names
from busmq_spark.federation.bulk.store_executor import (
    BulkPushSubscriptions,
    BulkReadStorePool,
    CreditedRead,
    QueueServerCache,
    StoreExecutor,
    StoreExecutorByClient,
    StoreThreadPool,
)
from busmq_spark.federation.gate.handshake import BULK_SUBPROTOCOL
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.gate.per_secret_quotas import PerSecretQuotas
from busmq_spark.federation.gate.rights import Identity
from busmq_spark.federation.gate.socket_limiter import LimitedServerConnection
from busmq_spark.federation.send_stall_meter import unsent_bytes
from busmq_spark.metrics import Metrics
from busmq_spark.options import MEMORY, BusOptions, RedisOptions
from busmq_spark.queue.message import Range
from busmq_spark.redis_io.endpoint import retry_time_s
from busmq_spark.redis_io.layout import RedisLayout, redis_layout
from busmq_spark.redis_io.pubsub_connection import PubSubConnection
from busmq_spark.redis_io.retry import FAILOVER_PATIENCE_S

MAX_READS_PER_CONNECTION = 4
"""Range reads of one connection at once."""
MAX_READS_IN_ALL = 64
"""Range reads that hold memory at once, of all connections: some 18 MB each. Further ones wait in
line; each secret has few of them (limits).
"""
MAX_UNANSWERED_CALLS = 64
"""Calls of one connection taken and not yet answered; beyond that nothing more is read from it.
They wait as bytes: read, they may take much more.
"""
MAX_PUSH_WAIT_S = 60.0
SMALL_HEAD_BYTES = 64 * 1024
"""Beyond that a head is taken apart, and its names are checked, in a thread."""
MAX_LARGE_HEADS_IN_WORK = 4
"""Calls with large heads that are taken apart or in work at once, of all connections: read, each
may take 50 MB.
"""
CONCURRENT_OPERATIONS = tuple(
    name for name, operation in OPERATIONS.items() if operation.served_by is RpcTarget.CONCURRENT
)
MAX_CLIENT_ID_LENGTH = 64
log = logging.getLogger("busmq_spark")


class FederationBulkServer:
    """The part that the bulk connections of one federation server share: threads, and one
    subscription to each Redis.

    async with FederationBulkServer(bus.options, limits) as bulk:
        await bulk.serve(socket, identity)  # returns when the connection ends
    """

    def __init__(
        self,
        options: RedisOptions,
        limits: PeerLimits | None = None,
        metrics: Metrics | None = None,
        quotas: PerSecretQuotas | None = None,
    ) -> None:
        self.limits, metrics = limits or PeerLimits(), metrics or Metrics()
        self.counts = BulkServerCounters(metrics)
        self.layout: RedisLayout = redis_layout(options)
        durability = options.durable if isinstance(options, BusOptions) else MEMORY
        self.pool, self.quotas = (
            StoreThreadPool(),
            quotas or PerSecretQuotas(self.limits, metrics, ()),
        )
        self.large = asyncio.Semaphore(MAX_LARGE_HEADS_IN_WORK)
        self.pubsub = [PubSubConnection(endpoint) for endpoint in self.layout.pubsub_endpoints]
        each = max(2, MAX_READS_IN_ALL // len(self.pubsub))
        self.reads = [
            asyncio.Semaphore(each) for _ in self.pubsub
        ]  # for each Redis, so that one that is silent holds up its own readers only
        self.places, self.clients, self.stores = (
            QueueServerCache(),
            StoreExecutorByClient(),
            BulkReadStorePool(self.layout, MAX_READS_IN_ALL, durability),
        )
        self._listening: list[asyncio.Task[None]] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._sessions: set[_BulkSession] = set()

    async def __aenter__(self) -> Self:
        self.pool, self.clients = StoreThreadPool(), StoreExecutorByClient()
        self._listening = []  # a server may be entered again, after its end
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tasks = [*self._listening, *self._leaving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await wait_at_most(
            self.limits.close_s,
            lambda: asyncio.to_thread(self.pool.shutdown, wait=True, cancel_futures=True),
        )
        self.stores.close()

    async def serve(self, socket: LimitedServerConnection, identity: Identity) -> None:
        """Answer one connection until it ends."""
        session = _BulkSession(self, socket, identity)
        self._sessions.add(session)
        try:
            await session.serve()
        finally:
            self._sessions.discard(session)
            await session.release()

    async def drain(self) -> None:
        """End each connection once nothing of it is under way."""
        await asyncio.gather(*(session.drain() for session in self._sessions))

    def close_going_away(self, socket: LimitedServerConnection) -> None:
        """Close a connection; its peer has ``close_s`` to agree, which draining does not wait
        for.
        """
        task = asyncio.create_task(
            socket.close(1001, "going away"), name="bulk: closing a connection"
        )
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def make_executor(self, identity: Identity) -> StoreExecutor:
        """A store for a peer."""
        quota = self.quotas.quota_of(identity.name)
        return StoreExecutor(
            self.layout, self.pool, identity, self.limits, quota, self.stores.take_store()
        )

    def on_disconnect(self, client: tuple[str, str], executor: StoreExecutor) -> None:
        """A client's connection is gone."""
        if executor.is_idle:
            self.clients.forget_executor(client, executor)
            return
        task = asyncio.create_task(
            executor.wait_until_idle(), name="bulk: a call outlives its connection"
        )
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        task.add_done_callback(lambda _: self.clients.forget_executor(client, executor))

    def start_receiving_pushes(self) -> None:
        """Subscribe to pushes, at the request of the first peer."""
        if not self._listening:
            self._listening = [
                asyncio.create_task(self._receive_pushes(connection), name="bulk: pub/sub")
                for connection in self.pubsub
            ]

    async def _receive_pushes(self, connection: PubSubConnection) -> None:
        while True:
            try:
                await connection.run()
            except BusError as error:  # no right to subscribe, for one: who waits polls instead
                log.warning("bulk: pushes are not received: %s", error)
                await asyncio.sleep(MAX_PUSH_WAIT_S)


class _BulkSession:
    """A connection."""

    def __init__(
        self, server: FederationBulkServer, socket: LimitedServerConnection, identity: Identity
    ) -> None:
        self._server = server
        self._limits = server.limits
        self._socket = socket
        self._identity = identity
        self._executor = server.make_executor(identity)
        self._calls: asyncio.Queue[bytes] = asyncio.Queue()
        self._room = asyncio.Event()
        self._pending = self._pending_bytes = 0
        self._reads: dict[int, CreditedRead] = {}
        self._waits: set[asyncio.Task[None]] = set()
        self._push_subscriptions = BulkPushSubscriptions(server.pubsub, self._executor)
        self._quota = server.quotas.quota_of(identity.name)
        self._quota.sockets += 1
        self._client: tuple[str, str] | None = None

    async def serve(self) -> None:
        """Until the peer is gone, or breaks the rules."""
        worker = asyncio.create_task(self._answer_calls(), name="bulk: calls")
        taking = asyncio.create_task(self._receive_frames(), name="bulk: taking")
        try:
            done, _ = await asyncio.wait((worker, taking), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except WireError as error:
            log.warning("bulk: %s", error)
            await self._socket.close(1008, "protocol error")
        except ConnectionClosed:
            pass
        finally:
            tasks = [
                worker,
                taking,
                *self._waits,
                *(r.task for r in self._reads.values() if r.task is not None),
            ]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def drain(self) -> None:
        """Until its calls are answered and its reads are over; then the connection is closed, and
        the peer connects elsewhere.
        """
        while self._pending or self._reads:
            self._room.clear()
            await self._room.wait()
        self._server.close_going_away(self._socket)

    async def release(self) -> None:
        """Give back what the connection holds."""
        self._push_subscriptions.unsubscribe_all()
        self._quota.sockets -= 1
        self._quota.count_bytes(-self._pending_bytes)
        self._executor.close()
        if self._client is not None:
            self._server.on_disconnect(self._client, self._executor)

    async def _receive_frames(self) -> None:
        turns = self._quota.turns
        while True:
            message = frame = None  # the last one is not held while the next is awaited
            message = await self._socket.recv()
            await turns.wait()
            if (
                isinstance(message, bytes)
                and frames.announced_head_length(message) > SMALL_HEAD_BYTES
            ):
                await self._enqueue_call(message)
                continue
            began = monotonic()
            frame = frames.decode_frame(message)
            turns.charge(monotonic() - began)
            match frame.kind:
                case BulkFrameKind.CALL if (
                    isinstance(frame.head, dict) and frame.head.get("op") in CONCURRENT_OPERATIONS
                ):
                    await self._answer_call(frame)
                case BulkFrameKind.CALL:
                    await self._enqueue_call(bytes(message))
                case BulkFrameKind.CREDIT if (
                    type(frame.head) is int and 0 < frame.head <= frames.MAX_WHOLE_NUMBER
                ):
                    if frame.id in self._reads:
                        self._reads[frame.id].grant_credit(frame.head)
                case BulkFrameKind.CANCEL:
                    if (reading := self._reads.get(frame.id)) and reading.task:
                        reading.task.cancel()
                case _:
                    raise frames.make_wire_error(
                        f"frame {frame.kind.name} from a client", "CALL, CREDIT or CANCEL"
                    )

    async def _enqueue_call(self, message: bytes) -> None:
        """In its turn. Nothing more is read while too much waits."""
        size = frames.announced_head_length(message)
        if size > frames.MAX_HEAD_BYTES:
            raise frames.make_wire_error(
                f"a head of {size} bytes", f"at most {frames.MAX_HEAD_BYTES}"
            )
        self._pending += 1
        self._pending_bytes += len(message)
        self._quota.count_bytes(len(message))
        self._socket.release_taken()
        await self._calls.put(message)
        del message
        while (
            self._pending >= MAX_UNANSWERED_CALLS
            or self._pending_bytes >= self._limits.in_flight_bytes
        ):
            self._room.clear()
            await self._room.wait()

    async def _answer_calls(self) -> None:
        while True:
            message = await self._calls.get()
            if frames.announced_head_length(message) > SMALL_HEAD_BYTES:
                async with (
                    self._server.large
                ):  # the other peers' loop is this one, and they share its memory
                    frame = await asyncio.to_thread(frames.decode_frame, message)
                    await self._answer_call(frame, large=True)
            else:
                await self._answer_call(frames.decode_frame(message))
            size = len(message)
            # A frame is not kept until the next call comes
            frame = message = None  # type: ignore[assignment]
            self._pending -= 1
            self._pending_bytes -= size
            self._quota.count_bytes(-size)
            self._room.set()

    async def _answer_call(self, frame: BulkProtocolFrame, *, large: bool = False) -> None:
        """Check the call and work it off, or begin to; what goes wrong on purpose is the answer."""
        began = monotonic()
        try:
            if frame.kind is not BulkFrameKind.CALL:
                raise frames.make_wire_error(f"a large frame {frame.kind.name}", "a CALL")
            name, operation, arguments = (
                await asyncio.to_thread(self._decode_call, frame)
                if large
                else self._decode_call(frame)
            )
            self._server.counts.calls.add(operation=name)
            await self._run_call(frame, name, operation, arguments)
            self._quota.note_call(BULK_SUBPROTOCOL, began)
        except ConnectionClosed:
            raise
        except BusError as error:
            self._server.counts.refused.add()
            await self._send_frame(make_error_frame(frame.id, error, self._server.layout))
        except (
            Exception
        ):  # whatever it is: one call must not end the others of its peer, and the log has it
            log.exception("bulk: a call failed")
            self._server.counts.refused.add()
            await self._send_frame(
                make_error_frame(frame.id, error_codec.UNEXPECTED_ERROR, self._server.layout)
            )

    def _decode_call(self, frame: BulkProtocolFrame) -> tuple[str, RpcOperation, tuple[Any, ...]]:
        head = frame.head
        if (
            not isinstance(head, dict)
            or not isinstance(head.get("op"), str)
            or head.keys() != {"op", "args"}
        ):
            raise frames.make_wire_error("a call of another form", "op and args")
        name, operation = head["op"], OPERATIONS.get(head["op"])
        if operation is None:
            raise frames.make_wire_error("an unknown operation", f"one of {', '.join(OPERATIONS)}")
        if self._identity.expires is not None and time.time() > self._identity.expires:
            raise FederationRefused(url="", reason="the token has expired")
        arguments = operation.decode_arguments(head["args"])
        check_rights_and_names(self._identity, operation, arguments)
        return name, operation, arguments

    async def _run_call(
        self,
        frame: BulkProtocolFrame,
        name: str,
        operation: RpcOperation,
        arguments: tuple[Any, ...],
    ) -> None:
        if operation.served_by is RpcTarget.CONCURRENT:
            getattr(self, f"_{name}")(frame.id, *arguments)
        elif operation.served_by is RpcTarget.SESSION:
            result = await getattr(self, f"_{name}")(*arguments)
            await self._send_frame(
                BulkProtocolFrame(BulkFrameKind.REPLY, frame.id, operation.result.encode(result))
            )
        else:
            async with (
                self._quota.discovering if name in ("discover", "event_queues") else nullcontext()
            ):
                reply = await self._executor.run_in_thread(
                    self._make_reply, frame, name, operation, arguments
                )
            await send_or_disconnect(self._socket, reply, self._limits.send_s)

    def _make_reply(
        self,
        frame: BulkProtocolFrame,
        name: str,
        operation: RpcOperation,
        arguments: tuple[Any, ...],
    ) -> bytes:
        """In a thread, since it may be large."""
        return BulkProtocolFrame(
            BulkFrameKind.REPLY,
            frame.id,
            operation.result.encode(
                self._executor.operations.run_call(name, arguments, frame.body)
            ),
        ).encode()

    async def _hello(self, _: int, name: str) -> ServerHello:
        """Note the client, so that no call of its last connection is under way any more when its
        next call comes.
        """
        if len(name) > MAX_CLIENT_ID_LENGTH:
            raise frames.make_wire_error(
                f"the name of a client of {len(name)} characters", f"at most {MAX_CLIENT_ID_LENGTH}"
            )
        if name and self._client is None:
            self._client = (self._identity.name, name)
            await self._server.clients.replace_executor(
                self._client, self._executor, self._socket.transport.abort
            )
        return ServerHello(
            frames.PROTOCOL_VERSION, self._server.layout.cluster, self._limits.message_bytes
        )

    async def _listen(self, queues: tuple[str, ...]) -> None:
        self._server.start_receiving_pushes()
        await self._push_subscriptions.replace_queues(queues)

    # -- beside ------------------------------------------------------------------------------------

    def _wait(self, id: int, timeout_ms: int) -> None:
        if self._waits:
            raise frames.make_wire_error("a second wait", "one at a time")
        task = asyncio.create_task(
            self._reply_after_push(id, min(max(0.0, timeout_ms / 1000), MAX_PUSH_WAIT_S)),
            name="bulk: beside",
        )
        self._waits.add(task)
        task.add_done_callback(self._waits.discard)

    async def _reply_after_push(self, id: int, timeout_s: float) -> None:
        notified = await self._push_subscriptions.wait_for_push(timeout_s)
        self._waits.clear()
        await self._send_frame(BulkProtocolFrame(BulkFrameKind.REPLY, id, notified))

    # -- range reads -------------------------------------------------------------------------------

    def _read(self, id: int, part: Range, strict: bool, credit: int) -> None:
        self._read_many(id, (part,), strict, credit, "read")

    def _read_with_spans(self, id: int, parts: Sequence[Range], credit: int) -> None:
        self._read_many(id, parts, False, credit, "read_with_spans")

    def _read_many(
        self, id: int, parts: Sequence[Range], strict: bool, credit: int, name: str = "read_many"
    ) -> None:
        if not 0 < len(parts) <= MAX_RANGES_PER_READ:
            raise frames.make_wire_error(f"{len(parts)} ranges", f"1 to {MAX_RANGES_PER_READ}")
        if len(self._reads) >= MAX_READS_PER_CONNECTION or id in self._reads:
            raise frames.make_wire_error(
                f"a read beside {len(self._reads)} others",
                f"at most {MAX_READS_PER_CONNECTION}, under ids of their own",
            )
        reading = self._reads[id] = CreditedRead(credit)
        reading.task = asyncio.create_task(
            self._answer_read(id, reading, parts, strict, name), name="bulk: read"
        )
        reading.task.add_done_callback(
            lambda _: self._forget_read(id, reading)
        )  # also when cancelled before its first step

    async def _answer_read(
        self, id: int, reading: CreditedRead, parts: Sequence[Range], strict: bool, name: str
    ) -> None:
        executor, well = self._server.make_executor(self._identity), False
        try:
            parts = await executor.run_in_thread(
                self._server.places.locate_ranges, executor.operations.store, parts
            )
            if name == "read_with_spans":
                spans, parts = await executor.run_in_thread(
                    ask_spans_and_stored_ranges, executor.operations.store, parts
                )
                await self._send_frame(
                    BulkProtocolFrame(
                        BulkFrameKind.SPANS, id, OPERATIONS[name].result.encode(spans)
                    )
                )
            async with AsyncExitStack() as turns:
                for server in sorted(
                    {part.server for part in parts}
                ):  # in one order, so that two never wait for each other
                    await turns.enter_async_context(self._quota.read_slots(server))
                    await turns.enter_async_context(self._server.reads[server])
                await self._send_row_frames(
                    id,
                    reading,
                    executor,
                    RangeReadFrameProducer(
                        executor.operations.store, parts, strict, many=name != "read"
                    ),
                )
            well = True
            await self._send_frame(BulkProtocolFrame(BulkFrameKind.END, id))
        except ConnectionClosed:
            pass
        except BusError as error:
            with suppress(ConnectionClosed):
                await self._send_frame(make_error_frame(id, error, self._server.layout))
        except Exception:  # as in _answer_call
            log.exception("bulk: a read failed")
            with suppress(ConnectionClosed):
                await self._send_frame(
                    make_error_frame(id, error_codec.UNEXPECTED_ERROR, self._server.layout)
                )
        finally:
            self._forget_read(id, reading)
            (self._server.stores.give_back_store if well else StoreExecutor.close)(executor)

    def _forget_read(self, id: int, reading: CreditedRead) -> None:
        if self._reads.get(id) is reading:
            del self._reads[id]
            self._room.set()

    async def _send_row_frames(
        self,
        id: int,
        reading: CreditedRead,
        executor: StoreExecutor,
        bodies: RangeReadFrameProducer,
    ) -> None:
        following, schema = executor.start_in_thread(bodies.next_frame), None
        while (body := await following) is not None:
            following = executor.start_in_thread(
                bodies.next_frame
            )  # Redis and Arrow go on while this one is on its way
            try:
                if body.schema is not schema:
                    await self._send_frame(
                        BulkProtocolFrame(
                            BulkFrameKind.SCHEMA, id, None, frames.encode_schema(body.schema)
                        )
                    )
                    schema = body.schema
                for part in body.parts:
                    self._server.places.remember_server(part)
                await self._wait_for_credit(reading, body.data.size)
                await self._send_frame(
                    BulkProtocolFrame(BulkFrameKind.ROWS, id, body.head, body.data)
                )
                self._server.counts.rows.add(body.rows)
                self._server.counts.bytes.add(body.data.size)
            except BaseException:
                following.cancel()
                raise

    async def _wait_for_credit(self, reading: CreditedRead, amount: int) -> None:
        """Wait for credit; a peer that gives none for ``send_s`` is cut off, too: others wait for
        its place.
        """
        try:
            async with asyncio.timeout(self._limits.send_s):
                await reading.spend_credit(amount)
        except TimeoutError:
            log.info("bulk: a peer gave no credit for %g s and was cut off", self._limits.send_s)
            self._socket.transport.abort()
            await self._socket.wait_closed()
            raise asyncio.CancelledError from None

    async def _send_frame(self, frame: BulkProtocolFrame) -> None:
        await send_or_disconnect(self._socket, frame.encode(), self._limits.send_s)


class BulkServerCounters:
    """The ``busmq_bulk_…`` metrics of all connections of one server."""

    def __init__(self, metrics: Metrics) -> None:
        self.calls = metrics.counter(
            "busmq_bulk_calls_total", "Calls taken", operation=tuple(OPERATIONS)
        )
        self.refused = metrics.counter("busmq_bulk_refused_total", "Calls answered with an error")
        self.rows = metrics.counter("busmq_bulk_rows_total", "Rows sent to readers")
        self.bytes = metrics.counter(
            "busmq_bulk_row_bytes_total", "Bytes of record batches sent to readers"
        )


def make_error_frame(id: int, error: BusError, asked: RedisLayout) -> BulkProtocolFrame:
    """The ERROR frame. If Redis is unreachable the reply says for how long to retry: longer where
    another server may take over.
    """
    head = encode_error(error)
    if not error_codec.is_shown_to_peers(error):
        log.log(
            logging.DEBUG if isinstance(error, LinkLost) else logging.WARNING, "bulk: %s", error
        )  # a lost link is asked about again and again
    if isinstance(error, LinkLost):
        head["details"]["patience_s"] = int(
            max((retry_time_s(end, error) for end in asked.endpoints), default=FAILOVER_PATIENCE_S)
        )
    return BulkProtocolFrame(BulkFrameKind.ERROR, id, head)


async def send_or_disconnect(socket: ServerConnection, message: bytes, send_s: float) -> None:
    """Send, unless the peer takes nothing for ``send_s``: then the connection is cut, and
    ConnectionClosed raised.
    """
    sending = asyncio.ensure_future(socket.send(message))
    left = (-1, -1)
    while True:
        try:
            done, _ = await asyncio.wait((sending,), timeout=send_s)
        except asyncio.CancelledError:
            sending.cancel()  # the frame is in the transport as a whole, or not at all
            raise
        if done:
            sending.result()
            return
        if left == (left := unsent_bytes(socket)):
            log.info("bulk: a peer took nothing for %g s and was cut off", send_s)
            socket.transport.abort()
