"""Serves ``busmq.bulk.v1`` on web sockets that a federation server has let in. The store is synchronous and runs in a few threads.

Rule 1. Calls of one connection are worked off in their order, on one store. Range reads run beside them, each on a store of its own.
Rule 2. A connection costs bounded memory: calls in flight are counted, a read holds two replies of Redis, and only as many ROWS are sent as the
        peer gave credit for. A peer that takes nothing off the wire for ``send_s``, or gives a read no credit for as long, is cut off.
Rule 3. When a connection ends, its reads stop at their next step and its stores are closed once no thread uses them (lane.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from busmq_spark.errors import BusError, FederationRefused, WireError
from busmq_spark.federation.bulk import frames
from busmq_spark.federation.bulk.answers import UNEXPECTED, Counts, refusal
from busmq_spark.federation.bulk.calls import OPERATIONS, Hello, Operation
from busmq_spark.federation.bulk.frames import Frame, Kind
from busmq_spark.federation.bulk.lane import Clients, Lane, Places, Pool, Reading, Turns, next_rows
from busmq_spark.federation.bulk.work import check
from busmq_spark.federation.limits import Limits
from busmq_spark.federation.progress import unsent
from busmq_spark.federation.rights import Identity
from busmq_spark.metrics import Metrics
from busmq_spark.options import RedisOptions
from busmq_spark.topology.address import Address, address
from busmq_spark.topology.ear import Ear
from busmq_spark.topology.endpoint import AnyOf

READS = 4
"""Range reads of one connection at once."""
READS_IN_ALL = 16
"""Range reads that hold memory at once, of all connections: some 18 MB each. Further ones wait in line."""
CALLS = 64
"""Calls of one connection taken and not yet answered; beyond that nothing more is read from it."""
LONGEST_WAIT_S = 60.0
SMALL_HEAD = 64 * 1024
"""Beyond that a head is taken apart, and its names are checked, in a thread."""
CONFIRM_S = 5.0
"""How long an answer to ``listen`` waits for Redis to confirm."""
MAX_CLIENT = 64
MOST_LISTENED = 20_000
log = logging.getLogger("busmq_spark")


class BulkServer:
    """What the bulk connections of one federation server share: threads, and one subscription to each Redis.

    async with BulkServer(bus.options, limits) as bulk: … await bulk.serve(socket, identity)   # returns when the connection ends
    """

    def __init__(self, options: RedisOptions, limits: Limits | None = None, metrics: Metrics | None = None) -> None:
        self.limits = limits or Limits()
        self.counts = Counts(metrics or Metrics())
        self.address: Address = address(options)
        self.pool = Pool()
        self.ears = [Ear(end) for end in ((AnyOf(self.address.servers),) if self.address.cluster else self.address.endpoints)]
        each = max(2, READS_IN_ALL // len(self.ears))
        self.reads = [asyncio.Semaphore(each) for _ in self.ears]  # for each Redis, so that one that is silent holds up its own readers only
        self.places, self.turns = Places(), Turns(max(1, each * 3 // 4))
        self.clients = Clients()
        self._listening: list[asyncio.Task[None]] = []
        self._leaving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        tasks = [*self._listening, *self._leaving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.close_s):
                await asyncio.to_thread(self.pool.shutdown, wait=True, cancel_futures=True)

    async def serve(self, socket: ServerConnection, identity: Identity) -> None:
        """Answer one connection until it ends."""
        session = _Session(self, socket, identity)
        try:
            await session.run()
        finally:
            await session.close()

    def lane(self, identity: Identity) -> Lane:
        """A store for a peer."""
        return Lane(self.address, self.pool, identity, self.limits.subscriptions)

    def left(self, client: tuple[str, str], lane: Lane) -> None:
        """A client's connection is gone."""
        if lane.idle:
            self.clients.left(client, lane)
            return
        task = asyncio.create_task(lane.ended(), name="bulk: a call outlives its connection")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        task.add_done_callback(lambda _: self.clients.left(client, lane))

    def listen(self) -> None:
        """Begin to hear pushes, with the first peer that asks."""
        if not self._listening:
            self._listening = [asyncio.create_task(self._hear(ear), name="bulk: hearing pushes") for ear in self.ears]

    async def _hear(self, ear: Ear) -> None:
        while True:
            try:
                await ear.run()
            except BusError as error:  # no right to subscribe, for one: who waits polls instead
                log.warning("bulk: pushes are not heard: %s", error)
                await asyncio.sleep(LONGEST_WAIT_S)


class _Session:
    """One connection."""

    def __init__(self, server: BulkServer, socket: ServerConnection, identity: Identity) -> None:
        self._server = server
        self._limits = server.limits
        self._socket = socket
        self._identity = identity
        self._lane = server.lane(identity)
        self._calls: asyncio.Queue[tuple[Frame, int]] = asyncio.Queue()
        self._room = asyncio.Event()
        self._pending = self._pending_bytes = 0
        self._reads: dict[int, Reading] = {}
        self._waits: set[asyncio.Task[None]] = set()
        self._heard: dict[str, int] = {}
        self._rung = asyncio.Event()
        self._client: tuple[str, str] | None = None

    async def run(self) -> None:
        """Until the peer is gone, or breaks the rules."""
        worker = asyncio.create_task(self._work(), name="bulk: calls")
        taking = asyncio.create_task(self._take(), name="bulk: taking")
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
            tasks = [worker, taking, *self._waits, *(r.task for r in self._reads.values() if r.task is not None)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Give back what the connection holds."""
        for channel, ear in self._heard.items():
            self._server.ears[ear].remove(channel, self._ring)
        self._lane.close()
        if self._client is not None:
            self._server.left(self._client, self._lane)

    async def _take(self) -> None:
        async for message in self._socket:
            frame = await self._decoded(message)
            match frame.kind:
                case Kind.CALL:
                    await self._call(frame, len(message))
                case Kind.CREDIT if type(frame.head) is int and 0 < frame.head <= frames.MAX_WHOLE:
                    if frame.id in self._reads:
                        self._reads[frame.id].grant(frame.head)
                case Kind.CANCEL:
                    if (reading := self._reads.get(frame.id)) and reading.task:
                        reading.task.cancel()
                case _:
                    raise frames.wrong(f"frame {frame.kind.name} from a client", "CALL, CREDIT or CANCEL")

    async def _decoded(self, message: bytes | str) -> Frame:
        """Large heads are taken apart in a thread: the other peers' loop is this one."""
        size = frames.head_bytes(message)
        if size > frames.HEAD_BYTES:
            raise frames.wrong(f"a head of {size} bytes", f"at most {frames.HEAD_BYTES}")
        return frames.decode(message) if size <= SMALL_HEAD else await asyncio.to_thread(frames.decode, message)

    async def _call(self, frame: Frame, size: int) -> None:
        """Beside the others what may take for ever; else in its turn."""
        name = frame.head.get("op") if isinstance(frame.head, dict) else None
        if name in ("read", "wait"):
            begin = self._begin_read if name == "read" else self._begin_wait
            await self._answer(frame, size, begin)
            return
        self._pending += 1
        self._pending_bytes += size
        await self._calls.put((frame, size))
        while self._pending >= CALLS or self._pending_bytes >= self._limits.in_flight_bytes:
            self._room.clear()
            await self._room.wait()

    async def _work(self) -> None:
        while True:
            frame, size = await self._calls.get()
            await self._answer(frame, size, self._do)
            self._pending -= 1
            self._pending_bytes -= size
            self._room.set()

    async def _answer(self, frame: Frame, size: int, handler: Callable[[Frame, str, Operation, tuple[Any, ...]], Any]) -> None:
        """Check the call and hand it over; what goes wrong on purpose is the answer."""
        try:
            large = size - len(frame.body) > SMALL_HEAD
            name, operation, arguments = await asyncio.to_thread(self._checked, frame) if large else self._checked(frame)
            self._server.counts.calls.add(operation=name)
            await handler(frame, name, operation, arguments)
        except ConnectionClosed:
            raise
        except BusError as error:
            self._server.counts.refused.add()
            await self._send(refusal(frame.id, error, self._server.address))
        except Exception:  # whatever it is: one call must not end the others of its peer, and the log has it
            log.exception("bulk: a call failed")
            self._server.counts.refused.add()
            await self._send(refusal(frame.id, UNEXPECTED, self._server.address))

    def _checked(self, frame: Frame) -> tuple[str, Operation, tuple[Any, ...]]:
        head = frame.head
        if not isinstance(head, dict) or not isinstance(head.get("op"), str) or head.keys() != {"op", "args"}:
            raise frames.wrong("a call of another form", "op and args")
        name, operation = head["op"], OPERATIONS.get(head["op"])
        if operation is None:
            raise frames.wrong("an unknown operation", f"one of {', '.join(OPERATIONS)}")
        if self._identity.expires is not None and time.time() > self._identity.expires:
            raise FederationRefused(url="", reason="the token has expired")
        arguments = operation.decode_arguments(head["args"])
        check(self._identity, name, operation, arguments)
        return name, operation, arguments

    async def _do(self, frame: Frame, name: str, operation: Operation, arguments: tuple[Any, ...]) -> None:
        if name == "hello":
            await self._greet(arguments[1])
            result: Any = Hello(frames.VERSION, self._server.address.cluster, self._limits.message_bytes)
        elif name == "listen":
            await self._listen(arguments[0])
            result = None
        else:
            await self._put(await self._lane.run(self._reply, frame, name, operation, arguments))
            return
        await self._send(Frame(Kind.REPLY, frame.id, operation.result.encode(result)))

    def _reply(self, frame: Frame, name: str, operation: Operation, arguments: tuple[Any, ...]) -> bytes:
        """In a thread, since it may be large."""
        return Frame(Kind.REPLY, frame.id, operation.result.encode(self._lane.work.do(name, arguments, frame.body))).encode()

    async def _greet(self, name: str) -> None:
        """Who the client is, so that nothing of its last connection is under way any more when its next call comes."""
        if len(name) > MAX_CLIENT:
            raise frames.wrong(f"the name of a client of {len(name)} characters", f"at most {MAX_CLIENT}")
        if name and self._client is None:
            self._client = (self._identity.name, name)
            await self._server.clients.take_over(self._client, self._lane, self._socket.transport.abort)

    # -- hearing of pushes ----------------------------------------------------------------------------------------------------------------

    async def _listen(self, queues: tuple[str, ...]) -> None:
        """Exactly to these queues from now on; returns once what is pushed from now on is heard."""
        if len(queues) > MOST_LISTENED:
            raise frames.wrong(f"{len(queues)} queues to listen to", f"at most {MOST_LISTENED}")
        self._server.listen()
        store = self._lane.work.store
        places = await self._lane.run(store.locate, queues)
        wanted = {store.keys(queue).available: places[queue] for queue in queues}
        for channel in [channel for channel, ear in self._heard.items() if wanted.get(channel) != ear]:
            self._server.ears[self._heard.pop(channel)].remove(channel, self._ring)
        new = {channel: ear for channel, ear in wanted.items() if channel not in self._heard}
        self._heard.update(new)
        if adding := [asyncio.create_task(self._add(channel, ear), name="bulk: listening") for channel, ear in new.items()]:
            await asyncio.wait(adding, timeout=CONFIRM_S)  # Redis is away: it rings when it is back
        self._rung.set()

    async def _add(self, channel: str, ear: int) -> None:
        """Ends when Redis has confirmed, or with ``remove``."""
        await self._server.ears[ear].add(channel, self._ring)
        self._rung.set()

    def _ring(self, _: bytes | None) -> None:
        self._rung.set()

    async def _begin_wait(self, frame: Frame, _: str, __: Operation, arguments: tuple[Any, ...]) -> None:
        if self._waits:
            raise frames.wrong("a second wait", "one at a time")
        self._beside(self._waits, self._wait(frame.id, min(max(0.0, arguments[0] / 1000), LONGEST_WAIT_S)))

    async def _wait(self, id: int, timeout_s: float) -> None:
        rung = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._rung.wait()
        except TimeoutError:
            rung = False
        self._rung.clear()
        self._waits.clear()
        await self._send(Frame(Kind.REPLY, id, rung))

    def _beside(self, tasks: set[asyncio.Task[None]], work: Any) -> None:
        task = asyncio.create_task(work, name="bulk: beside")
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    # -- range reads ----------------------------------------------------------------------------------------------------------------------

    async def _begin_read(self, frame: Frame, _: str, __: Operation, arguments: tuple[Any, ...]) -> None:
        part, strict, credit = arguments
        if len(self._reads) >= READS or frame.id in self._reads:
            raise frames.wrong(f"a read beside {len(self._reads)} others", f"at most {READS}, under ids of their own")
        reading = self._reads[frame.id] = Reading(credit)
        reading.task = asyncio.create_task(self._read(frame.id, reading, part, strict), name="bulk: read")
        reading.task.add_done_callback(lambda _: self._read_ended(frame.id, reading))  # also when cancelled before its first step

    async def _read(self, id: int, reading: Reading, part: Any, strict: bool) -> None:
        lane = self._server.lane(self._identity)
        try:
            part = await lane.run(self._server.places.find, lane.work.store, part)
            async with self._server.turns.of(self._identity, part.server), self._server.reads[part.server]:
                await self._stream(id, reading, lane, part, strict)
            await self._send(Frame(Kind.END, id))
        except ConnectionClosed:
            pass
        except BusError as error:
            with suppress(ConnectionClosed):
                await self._send(refusal(id, error, self._server.address))
        except Exception:  # as in _answer
            log.exception("bulk: a read failed")
            with suppress(ConnectionClosed):
                await self._send(refusal(id, UNEXPECTED, self._server.address))
        finally:
            self._read_ended(id, reading)
            lane.close()

    def _read_ended(self, id: int, reading: Reading) -> None:
        if self._reads.get(id) is reading:
            del self._reads[id]

    async def _stream(self, id: int, reading: Reading, lane: Lane, part: Any, strict: bool) -> None:
        rows = lane.work.store.read(part, strict)
        following = lane.start(next_rows, rows)
        told = None
        while (found := await following) is not None:
            first, count, schema, body = found
            following = lane.start(next_rows, rows)  # Redis and Arrow go on while this one is on its way
            try:
                if schema is not told:
                    await self._send(Frame(Kind.SCHEMA, id, None, frames.encode_schema(schema)))
                    self._server.places.found(part)
                    told = schema
                await self._spend(reading, body.size)
                await self._send(Frame(Kind.ROWS, id, {"first": first}, body))
                self._server.counts.rows.add(count)
                self._server.counts.bytes.add(body.size)
            except BaseException:
                following.cancel()
                raise

    async def _spend(self, reading: Reading, amount: int) -> None:
        """Wait for credit; a peer that gives none for ``send_s`` is cut off, too: others wait for its place."""
        try:
            async with asyncio.timeout(self._limits.send_s):
                await reading.spend(amount)
        except TimeoutError:
            log.warning("bulk: a peer gave no credit for %g s and was cut off", self._limits.send_s)
            self._socket.transport.abort()
            await self._socket.wait_closed()
            raise asyncio.CancelledError from None

    async def _send(self, frame: Frame) -> None:
        await self._put(frame.encode())

    async def _put(self, message: bytes) -> None:
        """Send, unless the peer takes nothing for ``send_s``: then the connection is cut, and ConnectionClosed raised."""
        sending = asyncio.ensure_future(self._socket.send(message))
        left = (-1, -1)
        while True:
            try:
                done, _ = await asyncio.wait((sending,), timeout=self._limits.send_s)
            except asyncio.CancelledError:
                sending.cancel()  # the frame is in the transport as a whole, or not at all
                raise
            if done:
                sending.result()
                return
            if left == (left := unsent(self._socket)):
                log.warning("bulk: a peer took nothing for %g s and was cut off", self._limits.send_s)
                self._socket.transport.abort()
