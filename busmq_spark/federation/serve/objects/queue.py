"""A queue for a peer (protocol 1.5 to 1.10, 5.6).

Rule 1. Pushes are stored in the order of the calls, and answered in it; nothing waits for the one
        before.
Rule 2. Messages are handed over only while there is room to send them. Messages that have not left
        for the peer when it ends go back to their place in the queue; messages that were on their
        way in the network come again only to reliable consumers.
Rule 3. A message that is no UTF-8 reaches the peer as text with U+FFFD, as npm's own would: the
        protocol has no bytes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from busmq_spark.bus.queue.base_queue import DEFAULT_QUEUE_TTL_S
from busmq_spark.bus.queue.consume import Consumption
from busmq_spark.errors import (
    BusError,
    ConfigError,
    MessageRefused,
    QueueFull,
    QueueMissing,
    ReadOnly,
    ServerFull,
    StateError,
    WritesPaused,
)
from busmq_spark.federation import error_codec
from busmq_spark.federation.npm_wire.dnode import DnodeCallbackRef
from busmq_spark.federation.serve.objects.base import (
    EVENT_METHODS,
    NEEDS_ADMIN,
    NEEDS_BROWSE,
    NEEDS_CONSUME,
    NEEDS_CREATE,
    NEEDS_PUSH,
    MethodCall,
    NeededVerbs,
    ServedMethod,
    ServedObject,
    consume_keywords,
    to_storable,
    ttl_of,
    whole_number_option,
)
from busmq_spark.federation.serve.peer import TakeRoom

if TYPE_CHECKING:
    from busmq_spark.bus.queue.queue import Queue
    from busmq_spark.federation.npm_wire.channels import ObjectCreationMessage
    from busmq_spark.federation.serve.peer import PeerChannel
    from busmq_spark.queue.message import Message

SERVED_PREFETCH = 200
MAX_DEFERRED_PUSHES, MAX_DEFERRED_BYTES, MAX_DEFERRED_BYTES_OF_CONNECTION = (
    1000,
    1024 * 1024,
    4 * 1024 * 1024,
)
"""Most pushes that wait for a queue to be attached, their bytes, and those of all queues of a
connection, each push with what it takes besides.
"""
CALL_OVERHEAD_BYTES = 500
CONSUME_RETRY_S = 0.5


class ServedQueue(ServedObject):
    """A queue object of the bus, for one channel."""

    kind = "queue"
    emits = frozenset(
        {
            "attaching",
            "attached",
            "detaching",
            "detached",
            "consuming",
            "closed",
            "error",
            "message",
        }
    )

    def __init__(self, peer: PeerChannel, made: ObjectCreationMessage) -> None:
        super().__init__(peer, made)
        self._queue: Queue = peer.bus.queue(made.name)
        self._queue.room = TakeRoom(peer.work)
        for event in ("attaching", "attached", "detaching", "detached", "consuming"):
            self._queue.on(event, partial(self.emit, event))
        self._queue.on("deleted", partial(self.emit, "closed"))
        self._queue.on(
            "error", lambda error: self.emit("error", error_codec.error_event_text(error))
        )
        self._last: asyncio.Future[int] | None = None
        self._deferred: list[MethodCall] = []
        self._pending_consume: MethodCall | None = None

    def needed_verbs(self, name: str, method: ServedMethod, values: list[Any]) -> NeededVerbs:
        """Metadata are read with any verb and set with the one that creates; to look at messages
        that stay is to browse.
        """
        if name == "consume" and values and isinstance(values[0], dict):
            return (
                NEEDS_BROWSE
                if values[0].get("remove") is False and values[0].get("reliable") is not True
                else NEEDS_CONSUME
            )
        return NEEDS_CREATE if name == "metadata" and _is_metadata_write(values) else method.need

    async def detach_object(self) -> None:
        """Detach; a consumption ends with it."""
        self._take_deferred_calls()
        await self.peer.work.send_buffer.wait_sent_so_far()
        await self._queue.detach()

    # -- life --------------------------------------------------------------------------------------

    async def attach(self, call: MethodCall) -> None:
        options = call.options
        owner = self.may("create") or self.may("admin")
        # With npm's protocol who consumes may be the first: it creates the queue, and sets nothing
        # for those who push.
        if not (owner or self.may("consume") or await self._queue.exists()):
            raise QueueMissing(queue=self.name)
        maxsize = max(0, whole_number_option(options, "maxsize", 0)) if owner else 0
        ttl_s = ttl_of(options) if owner else DEFAULT_QUEUE_TTL_S
        await self._queue.attach(
            ttl_s=ttl_s, maxsize=maxsize, discoverable=owner and options.get("discoverable") is True
        )
        pending, self._pending_consume = self._pending_consume, None
        if pending is not None:
            self.consume(pending)
        for push in self._take_deferred_calls():
            try:
                self.push(push)
            except BusError as error:
                self.peer.send_error(push.callback, error)

    async def detach(self, _: MethodCall) -> None:
        await self._wait_until_pushed()
        await self.stop_sending_messages()
        await self._queue.detach()

    async def close(self, _: MethodCall) -> None:
        if not self._queue.attached:
            raise self._not_attached_error("close")
        await self._wait_until_pushed()
        await self.stop_sending_messages()
        await self._queue.delete()

    # -- pushing -----------------------------------------------------------------------------------

    def push(self, call: MethodCall) -> None:
        if not self._queue.attached:
            self._defer_push(call)
            return
        if not call.values or isinstance(call.values[0], DnodeCallbackRef):
            raise MessageRefused(reason="a push without a message; undefined cannot be pushed")
        self._last = self._queue.push(to_storable(call.values[0]))
        self.answer_push(call, self._last)

    def answer_failed_push(self, call: MethodCall, error: BusError) -> None:
        if isinstance(error, QueueFull):
            self.answer(call, None, None)
        else:
            super().answer_failed_push(call, error)

    def _defer_push(self, call: MethodCall) -> None:
        if (
            len(self._deferred) >= MAX_DEFERRED_PUSHES
            or sum(push.size for push in self._deferred) + call.size > MAX_DEFERRED_BYTES
        ):
            raise self._not_attached_error("push to")
        cost, work = call.size + CALL_OVERHEAD_BYTES, self.peer.work
        if work.deferred_bytes + cost > MAX_DEFERRED_BYTES_OF_CONNECTION:
            raise self._not_attached_error("push to")
        work.deferred_bytes += cost
        self._deferred.append(call)

    def _take_deferred_calls(self) -> list[MethodCall]:
        deferred, self._deferred = self._deferred, []
        self.peer.work.deferred_bytes -= sum(push.size + CALL_OVERHEAD_BYTES for push in deferred)
        return deferred

    async def _wait_until_pushed(self) -> None:
        """Wait for the pushes so far: later calls must see them."""
        if self._last is not None and not self._last.done():
            await asyncio.wait([self._last])

    # -- consuming ---------------------------------------------------------------------------------

    def consume(self, call: MethodCall) -> None:
        if self._reader is not None and not self._reader.done():
            return
        if not self._queue.attached:
            self._pending_consume = self._pending_consume or call
            return
        throttle = call.options.get("throttle")
        keywords = consume_keywords(call.options)
        keywords["prefetch"] = SERVED_PREFETCH
        consumption = self._queue.consume(**keywords)
        consumption.names_holder = False
        work = self._consume(
            consumption, throttle if isinstance(throttle, DnodeCallbackRef) else None
        )
        self._reader = self.peer.spawn(work, f"consuming {self.name} for a peer")

    async def _consume(self, consumption: Consumption, throttle: DnodeCallbackRef | None) -> None:
        room, drained = self.peer.work.send_buffer.wait_room, False
        try:
            if throttle is not None:  # stored messages come without it
                await consumption.begin()
                drained = await self._queue.count() == 0
            while True:
                await self._wait_until_filled(consumption)
                if throttle is not None and drained:
                    await self._wait_until_released(throttle)
                count = 0
                while (message := consumption.head) is not None:
                    if not await room() or not self.peer.is_open:
                        return  # detaching puts it back
                    tail = await self._encode(message)
                    if consumption.head is not message or not self.peer.is_open:
                        break  # stopped meanwhile: it has gone back
                    consumption.pop_head(arrived=False)
                    await self.send_message(tail, partial(consumption.on_handed_over, message.id))
                    count += 1
                drained = count < SERVED_PREFETCH
                await (
                    self.peer.work.send_buffer.wait_sent_so_far()
                )  # Redis keeps what was taken last only
        except StopAsyncIteration:
            return
        except BusError:
            await self.peer.work.send_buffer.wait_sent_so_far()
            with suppress(BusError):
                await self._queue.stop()  # which sends the peer ``consuming(False)``
            raise

    async def _wait_until_filled(self, consumption: Consumption) -> None:
        """Until there is a message. A Redis that is full or read-only may recover: the peer gets
        one ``error`` event, and waits.
        """
        reported = False
        while True:
            try:
                await consumption.wait_filled()
            except (ServerFull, ReadOnly, WritesPaused) as error:
                if not reported:
                    self.peer.send_error(None, error)
                reported = True
                await asyncio.sleep(CONSUME_RETRY_S)
            else:
                return

    async def _encode(self, message: Message) -> bytes:
        try:
            return await self.encode_message(message.value, message.id)
        except MessageRefused as error:
            reason = (
                f"message {message.id} of queue {self.name!r}: {error.details['reason']}. Consuming"
                " has stopped"
            )
            raise MessageRefused(reason=reason) from None

    async def _wait_until_released(self, throttle: DnodeCallbackRef) -> None:
        """Let the peer say when to go on: it gets a function, and calls it."""
        called = asyncio.Event()

        def go_on(*_: Any) -> None:
            called.set()

        self.peer.invoke(throttle.id, go_on)
        await called.wait()
        self.peer.functions.forget(self.peer.functions.register(go_on))

    async def stop(self, _: MethodCall) -> None:
        self._pending_consume = None
        await self.stop_sending_messages()
        await self._queue.stop()

    async def ack(self, call: MethodCall) -> None:
        """Answered only when it fails (protocol Q2): npm clients know no other."""
        await self._queue._ack_taken(call.expect_number(0, "id", -1))

    # -- asking ------------------------------------------------------------------------------------

    async def count(self, call: MethodCall) -> None:
        await self._wait_until_pushed()
        self.answer(call, None, await self._queue.count())

    async def flush(self, call: MethodCall) -> None:
        await self._wait_until_pushed()
        self.answer(call, None, int(await self._queue.flush()))

    async def exists(self, call: MethodCall) -> None:
        self.answer(call, None, await self._queue.exists())

    async def find(self, call: MethodCall) -> None:
        self.answer(call, None, await self._queue.find())

    async def ttl(self, call: MethodCall) -> None:
        self.answer(call, None, await self._queue.ttl())

    async def maxsize(self, call: MethodCall) -> None:
        async with self.peer.work.large_answer():
            found = (await self._queue.metadata()).get("maxsize", "")
        self.answer(call, None, int(found) if found.isdecimal() else None)

    async def metadata(self, call: MethodCall) -> None:
        match call.values:
            case []:
                async with self.peer.work.large_answer():
                    self.answer(call, None, await self._queue.metadata() or None)
            case [str(name)]:
                async with self.peer.work.large_answer():
                    self.answer(call, None, (await self._queue.metadata()).get(name))
            case [str(name), value, *_]:
                await self._queue.set_metadata({_to_metadata_text(name): _to_metadata_text(value)})
                self.answer(call)
            case [dict(fields), *_]:
                await self._queue.set_metadata(
                    {
                        _to_metadata_text(name): _to_metadata_text(value)
                        for name, value in fields.items()
                    }
                )
                self.answer(call)
            case _:
                raise ConfigError(
                    reason="metadata takes nothing, a name, a name and a value, or an object"
                )

    def _not_attached_error(self, what: str) -> StateError:
        return StateError(
            event=what,
            what=f"queue {self.name!r}",
            state="not attached",
            remedy="Call attach() first",
        )

    methods: ClassVar[dict[str, ServedMethod]] = {
        **EVENT_METHODS,
        "find": ServedMethod(find),
        "isAttached": ServedMethod(lambda self, call: self.answer(call, self._queue.attached)),
        "attach": ServedMethod(attach),
        "detach": ServedMethod(detach),
        "ttl": ServedMethod(ttl),
        "maxsize": ServedMethod(maxsize),
        "metadata": ServedMethod(metadata),
        "close": ServedMethod(close, NEEDS_ADMIN),
        "exists": ServedMethod(exists),
        "count": ServedMethod(count),
        "flush": ServedMethod(flush, NEEDS_ADMIN),
        "push": ServedMethod(push, NEEDS_PUSH),
        "pushed": ServedMethod(lambda self, call: self.answer(call, None, self._queue.pushed)),
        "consumed": ServedMethod(lambda self, call: self.answer(call, None, self._queue.consumed)),
        "stop": ServedMethod(stop),
        "isConsuming": ServedMethod(
            lambda self, call: self.answer(call, None, self._queue.consuming)
        ),
        "consume": ServedMethod(consume, NEEDS_CONSUME),
        "ack": ServedMethod(ack, NEEDS_CONSUME),
    }


def _is_metadata_write(values: list[Any]) -> bool:
    return len(values) > 1 or (len(values) == 1 and isinstance(values[0], dict))


def _to_metadata_text(value: Any) -> str:
    """A metadata field as npm stores it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(to_storable(value))
    raise ConfigError(
        reason=f"a metadata field is {type(value).__name__}; expected text or a number"
    )
