"""A queue on a server that speaks busmq's own protocol only: its object, and a source's operations.

A queue object on a server that speaks busmq's own protocol only: looking at messages, and
removing them, in runs that end by themselves.

Rule 1. npm's server dies of what it does not expect (protocol 5.10): ``error`` is listened to
        first, and nothing but ``exists`` is called before attach, which happens once.
Rule 2. There is one consumption at a time; the next begins when all requests of the last one to
        Redis are answered. An object on which that is not known is closed.
Rule 3. A consumption that removes is reliable: messages beyond its end are put back (protocol 1.4,
        ACK with restore).

The operations of a source on a queue, over busmq's own protocol. Satisfies store/protocol.py as
far as that wire allows.

Rule 1. The wire has positions from the head, not ids. A position is used only after the id found
        there has been checked.
Rule 2. An empty queue does not say its last id. It is the id up to which a checkpoint has read
        (``wanted``), or the mark that an ack left in the metadata, whichever is higher; where there
        is neither it is UNKNOWN_ID until the next message shows it.
Rule 3. The metadata is written without compare-and-set: the writer reads it again a moment later to
        see whether its value stayed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from hashlib import sha1
from typing import Any

from busmq_spark.errors import BusError, FederationLost, LinkLost, QueueMissing
from busmq_spark.federation.client.remote_object_connection import RemoteObjectConnection
from busmq_spark.federation.client.web_socket_pool import WebSocketPool
from busmq_spark.federation.npm_wire.channels import make_creation
from busmq_spark.queue.message import Position, Range
from busmq_spark.queue.queue import AttachResult
from busmq_spark.reading.loss import Loss
from busmq_spark.reading.reader_operations import UNKNOWN_ID, AckResult, QueueState
from busmq_spark.redis_io.event_loops import LoopTimeout
from busmq_spark.redis_io.lease_token import LEASE_MS
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.store.loss_errors import check_life, loss_error
from busmq_spark.store.protocol import LossCauseEvidence, QueueCreateOptions

ANSWER_TIMEOUT_S = 10.0
"""A server that has not sent an answer, or a message that it has, for so long counts as lost."""
QUIET_BEFORE_COUNT_S = 0.25
"""After so long without an event the server is asked whether it has more: a consumption of an empty
queue waits for pushes, without an event.
"""


class RemoteNpmQueue:
    """Every method raises FederationLost when the object is lost or the server reports an error;
    then ``is_over`` is true.
    """

    def __init__(self, pool: WebSocketPool) -> None:
        self.located = self.attached = False
        """Whether ``exists`` was asked, after which fields may be read; whether messages may be,
        and fields be written.
        """
        self.url = pool.target.url
        self._pool = pool
        self._remote: RemoteObjectConnection
        self._why: FederationLost | None = None
        self._happened = asyncio.Event()
        self._existed: bool | None = None
        self._consuming: bool | None = None
        self._messages: list[tuple[int, str]] = []
        self._steps = 0

    @classmethod
    async def open(
        cls, pool: WebSocketPool, queue: str, patience_s: float, *, texts: bool
    ) -> RemoteNpmQueue:
        """``texts``: whether to receive messages; without it the server does not send those that
        are removed.
        """
        made = cls(pool)
        try:
            async with LoopTimeout(patience_s):
                creation = make_creation("queue", queue)
                made._remote = await pool.create_remote(
                    creation, lambda _, why: made._on_lost(str(why.details.get("reason", why)))
                )
        except TimeoutError:
            pool.abort_connections()
            raise (
                pool.last_error
                if isinstance(pool.last_error, FederationLost)
                else FederationLost(url=made.url, reason="no connection in good time")
            ) from None
        on = made._remote.on
        on("error", made._on_error)
        on("attached", made._on_attached)
        on("consuming", made._on_consuming)
        if texts:
            on("message", made._on_message)
        return made

    @property
    def is_over(self) -> bool:
        """Whether it is of no more use."""
        return self._why is not None or self._remote.over

    def close(self) -> None:
        """The server detaches the object."""
        self._on_lost("the queue was let go of here")
        self._remote.close()

    async def read_metadata(self) -> dict[str, str]:
        """The metadata; nothing where there is no such queue, or only a stub that says it is
        elsewhere (protocol 1.11).
        """
        if not self.located:
            await self._call_for_result("exists")
            self.located = True
        found = await self._call_for_result("metadata")
        return found if isinstance(found, dict) and found.get("ttl") else {}

    async def attach(self, ttl_s: int, maxsize: int = 0) -> bool:
        """Whether the queue existed; else it does now."""
        self._remote.call_without_reply("attach", {"ttl": ttl_s, "maxsize": maxsize})
        await self._wait_for_end(lambda: self._existed is not None, self._is_never_stuck)
        self.located = self.attached = True
        assert self._existed is not None
        return self._existed

    async def set_metadata(self, **fields: str) -> None:
        """Set some metadata."""
        await self._call_for_result("metadata", fields)

    async def count_messages(self) -> int:
        """Return the number of stored messages."""
        return int(await self._call_for_result("count"))

    async def peek(self, position: int, most: int = 1) -> list[tuple[int, str]]:
        """Ids and texts of ``most`` messages from a position on, or of all that are left there.
        Nothing is removed.
        """
        self._messages = []

        async def is_at_end() -> bool:
            return await self.count_messages() <= position + len(self._messages)

        await self._consume({"remove": False, "index": position, "max": most}, is_at_end)
        return self._messages

    async def remove(self, many: int, last: int) -> None:
        """Remove ``many`` messages from the head, but none with an id above ``last``."""
        left = many

        async def is_at_end() -> bool:
            nonlocal left
            self._steps += (now := await self.count_messages()) != left
            left = now
            return now == 0

        if many:
            await self._consume({"reliable": True, "last": last, "max": many}, is_at_end)
        await self._consume({"reliable": True, "last": last, "max": 0}, self._is_never_stuck)
        await self.count_messages()  # goes the same way after it: now it is done

    async def push(self, text: str) -> int | None:
        """Push a message; its id, or None when the queue is full."""
        found = await self._call_for_result("push", text)
        return None if found is None else int(found)

    # -- inside ------------------------------------------------------------------------------------

    async def _call_for_result(self, method: str, *args: Any) -> Any:
        self._raise_if_lost()
        try:
            async with LoopTimeout(ANSWER_TIMEOUT_S):
                found = await self._remote.call_for_result(method, *args)
        except TimeoutError:
            # The other queues are better off with another connection, too
            self._pool.abort_connections()
            raise self._lost_error(f"no answer to {method} within {ANSWER_TIMEOUT_S:g} s") from None
        except LinkLost:
            raise
        except BusError as error:  # the server's Redis is unreachable, or full
            raise self._lost_error(f"{method}: {error}") from None
        self._raise_if_lost()
        return found[0] if found else None

    async def _consume(self, options: dict[str, Any], stuck: Callable[[], Awaitable[bool]]) -> None:
        """Until the server says that it has ended, or ``stuck`` says that nothing is left."""
        self._raise_if_lost()
        self._consuming = None
        try:
            self._remote.call_without_reply("consume", options)
            if not await self._wait_for_end(lambda: self._consuming is False, stuck):
                self._remote.call_without_reply("stop")
                await self._wait_for_end(lambda: self._consuming is False, self._is_never_stuck)
                await self.count_messages()  # its requests to Redis are answered before this
        except BaseException:
            if not self.is_over:
                self.close()
            raise

    async def _wait_for_end(
        self, done: Callable[[], bool], stuck: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Whether it came to its end."""
        loop = asyncio.get_running_loop()
        until, seen = loop.time() + ANSWER_TIMEOUT_S, self._steps
        while True:
            self._raise_if_lost()
            if done():
                return True
            self._happened.clear()
            try:
                async with asyncio.timeout(QUIET_BEFORE_COUNT_S):
                    await self._happened.wait()
            except TimeoutError:
                if await stuck():
                    return done()
            if self._steps != seen:
                until, seen = loop.time() + ANSWER_TIMEOUT_S, self._steps
            elif loop.time() > until:
                self._pool.abort_connections()
                raise self._lost_error(f"nothing more within {ANSWER_TIMEOUT_S:g} s")

    async def _is_never_stuck(self) -> bool:
        return False

    def _raise_if_lost(self) -> None:
        if self._why is not None:
            raise self._why

    def _lost_error(self, reason: str) -> FederationLost:
        self._on_lost(reason)
        self._remote.close()
        assert self._why is not None
        return self._why

    def _on_lost(self, reason: str) -> None:
        self._why = self._why or FederationLost(url=self.url, reason=reason)
        self._happened.set()

    def _on_error(self, *found: Any) -> None:
        self._on_lost(f"it says: {str(found[0])[:300] if found else 'an error'}")
        self._remote.close()

    def _on_attached(self, existed: bool) -> None:
        self._existed = existed
        self._count_step()

    def _on_consuming(self, state: bool) -> None:
        self._consuming = state
        self._count_step()

    def _on_message(self, text: str, id: int | str) -> None:
        self._messages.append((int(id), text))
        self._count_step()

    def _count_step(self) -> None:
        self._steps += 1
        self._happened.set()


LAST_ACKED_FIELD, READER_FIELD = "busmq_spark:last", "busmq_spark:reader"
"""Fields in a queue's metadata: the highest id acked, and who reads."""
WRITE_SETTLED_S = 0.2
"""A writer of the same moment has finished its write within this time."""
MAX_TRIES = 5
MAX_PUSHES_UNDER_WAY = 500
"""Under way at once."""
NO_LOSS_CAUSE_EVIDENCE = LossCauseEvidence(None, 0, empty=False)
MISSING_QUEUE_STATE = QueueState(0, "", 0, 0, 0, 0, 0, "", "")
Message = tuple[int, str]
PositionAndId = tuple[int, int]
"""A position, and the id that is there."""
log = logging.getLogger("busmq_spark")


class FederationNpmQueue:
    """A queue. Two objects at most: one to read messages, one that removes them without receiving
    them.
    """

    def __init__(self, name: str, open_: Callable[[str, bool], Awaitable[RemoteNpmQueue]]) -> None:
        self.name = name
        self.lock = asyncio.Lock()
        """Held during each call of the server: one at a time."""
        self._open = open_
        self._objects: dict[bool, RemoteNpmQueue] = {}
        self._reader: tuple[str, float] = (
            "",
            0.0,
        )  # the last value of READER_FIELD, and the time since it has not changed

    async def attach(self, creation: QueueCreateOptions) -> AttachResult:
        """Create the queue, or adopt the one that is there, and name its life. Raises
        QueueMissing.
        """
        remote, fields = await self._object_and_fields()
        existed = bool(fields)
        if not fields:
            if not creation.allowed:
                raise QueueMissing(queue=self.name)
            existed = await remote.attach(creation.ttl_s, creation.maxsize)
            fields = await remote.read_metadata()
        if not fields.get("born"):
            await remote.set_metadata(born=new_token())
            await asyncio.sleep(WRITE_SETTLED_S)
            fields = await remote.read_metadata()
        if not fields.get("born"):
            raise QueueMissing(queue=self.name)
        return AttachResult(
            existed, int(fields["ttl"]), int(fields.get("maxsize") or 0), fields["born"]
        )

    async def state(self, wanted: int) -> QueueState:
        """Return the state, like core.reader_operations.states; ``last_id`` is UNKNOWN_ID where the
        wire cannot say it.
        """
        back = False
        for _ in range(MAX_TRIES):
            remote, fields = await self._object_and_fields()
            if not fields:
                return MISSING_QUEUE_STATE
            known = (int(fields["ttl"]), fields.get("born") or "", int(fields.get("maxsize") or 0))
            count = await remote.count_messages()
            if not count:
                return QueueState(
                    *known,
                    max(wanted, int(fields.get(LAST_ACKED_FIELD) or UNKNOWN_ID)),
                    0,
                    0,
                    0,
                    "",
                    "",
                )
            oldest, newest = await remote.peek(0), await remote.peek(count - 1)
            if not oldest or not newest:
                continue  # another consumer is removing them at this moment
            (first, _), (last, text) = oldest[0], newest[0]
            if 0 <= wanted < first - 1 and not back and (back := await self._was_put_back(fields)):
                continue
            mark = (
                fingerprint(text)
                if wanted == last
                else await self.mark(wanted)
                if first <= wanted < last
                else ""
            )
            return QueueState(*known, last, first, last, count, mark, fingerprint(text))
        raise FederationLost(
            url=remote.url, reason=f"queue {self.name!r} changes faster than it can be looked at"
        )

    async def mark(self, id: int) -> str:
        """The fingerprint of a message; empty when it is not stored."""
        remote, fields = await self._object_and_fields()
        place = await find_position(remote, id) if fields else None
        if place is None or place[1] != id:
            return ""
        found = await remote.peek(place[0])
        return fingerprint(found[0][1]) if found and found[0][0] == id else ""

    async def newest_id(self) -> int:
        """Something that changes with every push: the newest id as far as ids follow each other. 0
        for an empty queue, -1 for none.
        """
        remote, fields = await self._object_and_fields()
        count = await remote.count_messages() if fields else -1
        oldest = await remote.peek(0) if count > 0 else []
        return oldest[0][0] + count - 1 if oldest else min(count, 0)

    async def read_rows(
        self, part: Range, need: int, most: int, strict: bool, at: int | None
    ) -> tuple[list[Message], int]:
        """The next messages of a range and the position after them. Ids follow each other, and
        begin with ``need`` if ``strict``.

        ``most`` at most, and none when nothing of the range is left. ``at`` is where ``need``
        should be. Raises DataLoss.
        """
        for attempt in range(MAX_TRIES):
            remote, fields = await self._object_and_fields()
            check_life(part, fields.get("born") or "", need)
            if at is None:
                place = await find_position(remote, need)
                if place is None or place[1] != need:
                    if attempt == 0 or (attempt == 1 and await self._was_put_back(fields)):
                        continue  # a message that moves is not missing
                    place = await self._find_next_stored(remote, part, need, place, strict)
                    if place is None:
                        return [], 0
                at, need = place
            found = await remote.peek(at, min(most, part.last - need + 1))
            # Lives do not come back: if it is this one still, it was so all the time.
            check_life(part, (await remote.read_metadata()).get("born") or "", need)
            if run := [
                message
                for message, id in zip(found, itertools.count(need), strict=False)
                if message[0] == id
            ]:
                return run, at + len(run)
            at = None
        raise FederationLost(
            url=remote.url, reason=f"queue {self.name!r} changes faster than it can be read"
        )

    async def ack(self, position: Position) -> AckResult:
        """Acknowledge, like ``ack_to`` there, without subscriptions. Messages are read before they
        are removed; those above the position are put back.
        """
        remote, fields = await self._object_and_fields()
        if not fields:
            return AckResult("missing", "")
        if fields.get("born") != position.born:
            return AckResult("recreated", fields.get("born") or "")
        count = await remote.count_messages()
        place = await find_position(remote, position.last)
        if (
            count
            and place is None
            and (newest := await remote.peek(count - 1))
            and newest[0][0] < position.last
        ):
            return AckResult("older", str(newest[0][0]))
        exact = place is not None and place[1] == position.last
        if (
            exact
            and position.mark
            and (found := await self.mark(position.last)) not in ("", position.mark)
        ):
            return AckResult("reissued", found)
        await (await self._object_for_removal(fields)).remove(
            place[0] + exact if place else 0, position.last
        )
        if int(fields.get(LAST_ACKED_FIELD) or 0) < position.last:
            await remote.set_metadata(**{LAST_ACKED_FIELD: str(position.last)})
        return AckResult("ok", "")

    async def lease(self, token: str, dead: str) -> str:
        """Return the reader afterwards. ``token`` only when it stayed so for a moment; a reader
        that does not renew it is replaced.
        """
        remote, fields = await self._object_and_fields()
        if not fields:
            return token  # planning finds that it is missing
        held, since = fields.get(READER_FIELD) or "", time.monotonic()
        holder = held.rpartition("#")[0]
        if holder not in ("", token, dead):
            if held != self._reader[0]:
                self._reader = (held, since)
            if since - self._reader[1] < LEASE_MS / 1000:
                return holder
        await remote.set_metadata(**{READER_FIELD: f"{token}#{new_token()}"})
        if holder != token:
            await asyncio.sleep(WRITE_SETTLED_S)
        return ((await remote.read_metadata()).get(READER_FIELD) or "").rpartition("#")[0]

    async def keep_alive(self, token: str) -> int:
        """1 alive, 0 missing, -1 another reader has the lease. An attached object keeps its queue
        alive; the lease is renewed here.
        """
        remote, fields = await self._object_and_fields()
        if not fields or not token:
            return int(bool(fields))
        holder = (fields.get(READER_FIELD) or "").rpartition("#")[0]
        if holder not in ("", token):
            return -1
        await remote.set_metadata(**{READER_FIELD: f"{token}#{new_token()}"})
        return 1

    async def push(self, left: list[str]) -> int:
        """Append texts in order, and take those that are stored from ``left``; the queue's maxsize,
        if it is full before that is empty.

        Raises QueueMissing.
        """
        remote, fields = await self._object_and_fields()
        if not fields:
            raise QueueMissing(queue=self.name)
        maxsize = int(fields.get("maxsize") or 0)
        while left:
            # If a push may be refused for want of room, the next must not find room before it is
            # tried again.
            found = await asyncio.gather(
                *(remote.push(text) for text in left[: 1 if maxsize else MAX_PUSHES_UNDER_WAY]),
                return_exceptions=True,
            )
            stored = next(
                (place for place, id in enumerate(found) if not isinstance(id, int)), len(found)
            )
            del left[:stored]
            if stored < len(found):
                if isinstance(failed := found[stored], BaseException):
                    raise failed
                break
        return maxsize

    # -- inside ------------------------------------------------------------------------------------

    async def _open_object(self, *, texts: bool) -> RemoteNpmQueue:
        if (remote := self._objects.get(texts)) is None or remote.is_over:
            remote = self._objects[texts] = await self._open(self.name, texts)
        return remote

    async def _object_and_fields(self) -> tuple[RemoteNpmQueue, dict[str, str]]:
        """The object and the metadata. Attached where there is such a queue, so that messages can
        be looked at.
        """
        remote = await self._open_object(texts=True)
        fields = await remote.read_metadata()
        if (
            not fields and remote.attached
        ):  # to one that was closed: its ttl is not that of the next
            for dead in self._objects.values():
                dead.close()
            remote = await self._open_object(texts=True)
            fields = await remote.read_metadata()
        if fields and not remote.attached:
            # Should the queue end just now, attach creates it again without a ``born`` field:
            # readers of the old one see that.
            await remote.attach(int(fields["ttl"]), int(fields.get("maxsize") or 0))
            fields = await remote.read_metadata()
        return remote, fields

    async def _object_for_removal(self, fields: dict[str, str]) -> RemoteNpmQueue:
        remote = await self._open_object(texts=False)
        if not remote.attached:
            await remote.attach(int(fields["ttl"]))
        return remote

    async def _was_put_back(self, fields: dict[str, str]) -> bool:
        """Whether what a removal took may be there again. A removal whose link broke goes on in the
        server, and a second one beside it makes the two take more than was to go, which is not
        lost. Only where a query of ours removes: un-acked messages of others are theirs.
        """
        if fields.get(READER_FIELD):
            await (await self._object_for_removal(fields)).remove(0, 0)
        return bool(fields.get(READER_FIELD))

    async def _find_next_stored(
        self,
        remote: RemoteNpmQueue,
        part: Range,
        need: int,
        place: PositionAndId | None,
        strict: bool,
    ) -> PositionAndId | None:
        """Ids from ``need`` on are not stored: an error, or a warning. Position and id of the next
        that is; return None when none is in the range.
        """
        if strict:
            count = await remote.count_messages()
            newest = await remote.peek(count - 1) if count and place is None else []
            kind, found = (
                ("rolled-back", f"last id {newest[0][0]}")
                if newest
                else ("removed", f"next stored id {place[1] if place else 'none'}")
            )
            raise loss_error(
                self.name, Loss(kind, f"ids {need}..{part.last}", found), NO_LOSS_CAUSE_EVIDENCE
            )
        log.warning(
            "queue %r: ids %d..%d are gone and were skipped",
            part.queue,
            need,
            min(part.last, place[1] - 1) if place else part.last,
        )
        return place if place and place[1] <= part.last else None


async def find_position(remote: RemoteNpmQueue, id: int) -> PositionAndId | None:
    """Find the position of the first message from ``id`` on; the result is None when each stored
    message is before it.
    """
    low, high, found = 0, await remote.count_messages(), None
    guess = 0
    while low < high:
        at = min(max(guess, low), high - 1)
        message = await remote.peek(at)
        if not message:
            high = at
        elif (there := message[0][0]) == id:
            return at, id
        elif there < id:
            low = at + 1
        else:
            high, found = at, (at, there)
        # At first where it is if ids follow each other, as they do but for what consumers put back.
        guess = id - message[0][0] if at == 0 and message else (low + high) // 2
    return found


def fingerprint(text: str) -> str:
    """Return the fingerprint, like include/mark.lua."""
    value = encode_text(text)
    return sha1(
        b"%d:" % len(value) + value[:512] + value[-512:], usedforsecurity=False
    ).hexdigest()[:12]


def encode_text(text: str) -> bytes:
    """The bytes of a message. Node has put U+FFFD for what was no UTF-8 before it came here."""
    return text.encode("utf-8", "replace")
