"""The operations of a reader on its queues: their state, acked positions, leases, keep-alive. Many
queues in one round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any, TypeVar

from busmq_spark.errors import QueueBusy, QueueDamaged
from busmq_spark.queue.command_generators import Flow, RedisCall, command, script, slices
from busmq_spark.queue.keys import QueueKeys, federated_prefix
from busmq_spark.queue.message import Position
from busmq_spark.queue.queue import MAX_MESSAGES_PER_ACK, MIN_RECORD_TTL_S
from busmq_spark.reading.range_reader import ValueSizeStats
from busmq_spark.reading.reader_record import Announcement

T = TypeVar("T")

QUEUES_PER_CALL = 100
"""Most queues in one script call: planning looks at each in some ten commands, and 100 take Redis 1
to 3 ms.
"""
QUEUES_PER_ANNOUNCEMENT = 50
"""Most queues in one renewal with a record, which doubles the time of a queue."""
UNKNOWN_ID = -1
"""Stands for the last id of an empty queue where that cannot be read: the next message reveals it
(federation/npm_servers/npm_queue.py).
"""
SAMPLE_EVERY_MESSAGES = 16
"""An estimate of bytes measures at most one message in so many."""
MIN_SAMPLE_RUN, MAX_SAMPLE_RUN, LARGE_MESSAGE_BYTES = 4, 16, 16 * 1024
"""Messages measured at one place: more in long ranges; only one where they are larger than that."""
MIN_SAMPLE_PLACES, MAX_SAMPLE_PLACES, SAMPLE_PLACES_PER_CALL = 16, 64, 8
"""Redis walks to each place from the head of the list, 0.1 ms in 100,000 messages of 1 KB: there
that costs more than measuring 16 of them.
"""
MAX_LONGEST_TO_MEAN_RATIO = 1.25
"""If the longest value is at most so many times as long as the mean, every value counts as the
longest: that never exceeds a budget of bytes, and uses at least four fifths of it.
"""
_STATE_ITEMS = 10
_OTHER_GROUP_KIND_REMEDY = "Choose another name, or drop that group first (busmq unsubscribe)"
_ONE_GROUP_REMEDY = "Read as that group, or drop it first (busmq unsubscribe)"
SUBSCRIPTION_OWNER_TTL_S = 90 * 24 * 3600
"""Seconds for which the owner of an unused subscription is stored: longer than its position."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """The state of a queue in Redis. Ids are 0 when there is none."""

    ttl_s: int
    """0 when the queue does not exist."""
    born: str
    """Incarnation; empty when none of our parts has touched this life of the queue."""
    maxsize: int
    last_id: int
    """The id given last, or UNKNOWN_ID."""
    oldest: int
    newest: int
    count: int
    mark: str
    """Fingerprint of the message asked for; empty when it is not stored."""
    newest_mark: str
    done: int = 0
    """Of a queue that keeps what is acknowledged: everything up to this id has been, by all readers
    there were. Else 0.
    """

    @property
    def exists(self) -> bool:
        """Whether the queue's metadata exists."""
        return self.ttl_s > 0

    @property
    def floor(self) -> int:
        """The position from which everything stored can be read: one before the oldest message, or
        the last id given when it is empty.
        """
        return self.oldest - 1 if self.count else self.last_id

    @property
    def kept_count(self) -> int:
        """Stored messages that are acknowledged, where ids have no holes."""
        return max(0, min(self.count, self.done - self.floor))

    @property
    def waiting(self) -> int:
        """Stored messages that some reader has still to acknowledge."""
        return self.count - self.kept_count


def states(queues: Sequence[tuple[QueueKeys, int]]) -> Flow[list[QueueState]]:
    """The state of each queue; the int is the id whose fingerprint is wanted, -1 for none."""
    replies = yield [
        script(
            "state",
            [key for keys, _ in part for key in (keys.metadata, keys.messages, keys.msgid)],
            [wanted for _, wanted in part],
        )
        for part in split_into_calls(queues, [keys for keys, _ in queues[:1]])
    ]
    rows = [row for reply in replies for row in zip(*[iter(reply)] * _STATE_ITEMS, strict=True)]
    return [_state(keys.name, row) for (keys, _), row in zip(queues, rows, strict=True)]


def _state(queue: str, row: tuple[Any, ...]) -> QueueState:
    ttl_s, born, maxsize, last_id, oldest, newest, count, mark, newest_mark, done = row
    ids = (
        checked_id(queue, "last id", last_id),
        checked_id(queue, "oldest stored id", oldest or b"0"),
        checked_id(queue, "newest stored id", newest or b"0"),
    )
    kept = min(ids[0], checked_id(queue, "id that all have acknowledged", done or b"0"))
    return QueueState(
        ttl_s, _text(born), maxsize, *ids, int(count), mark.decode(), newest_mark.decode(), kept
    )


def checked_id(queue: str, what: str, text: bytes) -> int:
    """An id as Redis has it. Raises QueueDamaged for what is none."""
    if not text.isdigit() or len(text) > 16:  # of bytes: 0 to 9 and no other digits
        raise QueueDamaged(
            queue=queue,
            found=f"its {what} is {text[:40].decode('utf-8', 'replace')!r}",
            expected="a whole number from 0 on",
        )
    return int(text)


def checked_ids(queues: Sequence[str], what: str, texts: Sequence[bytes]) -> list[int]:
    """Check the ids of many queues, like :func:`checked_id`."""
    if all(map(bytes.isdigit, texts)) and max(map(len, texts), default=0) <= 16:
        return list(map(int, texts))
    return [checked_id(queue, what, text) for queue, text in zip(queues, texts, strict=True)]


def _text(found: bytes) -> str:
    """Decode text that another program may have written: it need not be UTF-8."""
    return found.decode("utf-8", "replace")


def fingerprint(value: bytes) -> str:
    """The fingerprint of a message, as lua/include/mark.lua computes it on the server."""
    return sha1(
        b"%d:%b%b" % (len(value), value[:512], value[-512:]), usedforsecurity=False
    ).hexdigest()[:12]


def intact(queues: Sequence[tuple[QueueKeys, Position, int]]) -> Flow[list[tuple[int, str] | None]]:
    """Check whether each queue has all messages after a position: the result is the newest id, and
    the fingerprint of the message with that id or, if it is lower, the requested one, which must be
    above the position. '' where nothing follows; the result is None where messages may be missing:
    :func:`states` returns the details.
    """
    replies = yield [
        script(
            "intact",
            [key for keys, _, _ in part for key in (keys.metadata, keys.messages, keys.msgid)],
            [word for _, at, upto in part for word in (at.born, at.last, at.mark, upto)],
        )
        for part in split_into_calls(queues, [keys for keys, _, _ in queues[:1]])
    ]
    ids = [id for reply in replies for id in reply[0::2]]
    marks = [mark for reply in replies for mark in reply[1::2]]
    last_ids = checked_ids(
        [keys.name for keys, _, _ in queues], "last id", [b"0" if id is None else id for id in ids]
    )
    found = zip(ids, last_ids, marks, strict=True)
    return [None if id is None else (last_id, mark.decode()) for id, last_id, mark in found]


def marks(messages: Sequence[tuple[QueueKeys, int]]) -> Flow[list[str]]:
    """The fingerprint of one message of each queue, by id; empty when it is not stored."""
    replies = yield [
        script("marks", [keys.messages for keys, _ in part], [id for _, id in part])
        for part in split_into_calls(messages, [keys for keys, _ in messages[:1]])
    ]
    return [mark.decode() for reply in replies for mark in reply]


def counters(queues: Sequence[QueueKeys]) -> Flow[list[bytes | None]]:
    """The raw id counter of each queue: one native command, the cheapest way to see that nothing
    was pushed.
    """
    if not queues:
        return []
    found: list[bytes | None]
    if queues[0].cluster:
        found = yield [command("GET", keys.msgid) for keys in queues]
    else:
        found = yield command("MGET", *(keys.msgid for keys in queues))
    return found


@dataclass(frozen=True, slots=True)
class CumulativeAckRequest:
    """A position to acknowledge: everything up to ``id`` in the incarnation ``born``; ``mark`` is
    the fingerprint of that message ('' unknown).
    """

    keys: QueueKeys
    id: int
    born: str
    mark: str


@dataclass(frozen=True, slots=True)
class AckResult:
    """``status``: ok, missing, recreated, older or reissued; ``detail`` is what was found
    instead.
    """

    status: str
    detail: str


def ack_to(
    acks: Sequence[CumulativeAckRequest], subscription: str = "", token: str = ""
) -> Flow[list[AckResult]]:
    """Acknowledge many positions. Messages that every subscription has acked are dropped, in steps
    that never hold Redis long.

    Idempotent and cumulative: an older position than the one acked before changes nothing. A
    refused position drops nothing. ``token`` names the reader for :func:`last_acked_by`.
    """
    results: list[AckResult] = [AckResult("ok", "")] * len(acks)
    open_ = list(range(len(acks)))
    while open_:
        replies = yield [
            _ack_call([acks[i] for i in part], subscription, token)
            for part in split_into_calls(open_, [acks[0].keys])
        ]
        left = []
        for i, (status, detail) in zip(
            open_, (row for reply in replies for row in reply), strict=True
        ):
            if status == b"more":
                left.append(i)
            else:
                results[i] = AckResult(
                    status.decode(), detail.decode() if isinstance(detail, bytes) else str(detail)
                )
        open_ = left
    return results


def _ack_call(acks: Sequence[CumulativeAckRequest], subscription: str, token: str) -> RedisCall:
    names = [key for ack in acks for key in ack.keys.retention_keys]
    positions = [arg for ack in acks for arg in (ack.id, ack.born, ack.mark)]
    reader = (token,) if token else ()
    return script(
        "ack_to", names, (subscription, MAX_MESSAGES_PER_ACK, MIN_RECORD_TTL_S, *positions, *reader)
    )


def last_acked_by(keys: QueueKeys, subscription: str, token: str) -> Flow[int]:
    """Return the last id that a reader has acked with this token; 0 where that is not known."""
    noted = yield command("HGET", keys.acks, f":by:{subscription}")
    found = [each.partition(":") for each in (noted or b"").decode().split(",")]
    return next((int(id) for id, _, by in found if by == token), 0)


def subscribe(
    queues: Sequence[QueueKeys],
    subscription: str,
    starts: Sequence[str | int],
    shared: Mapping[str, str | int] | None = None,
) -> Flow[list[int]]:
    """Register the subscription on every queue; the result is its last acked id there. A start is
    ``earliest``, ``latest`` or an acked id. With ``=`` before it, it is that of its reader, to
    which the subscription goes back where the queue keeps what is acknowledged.

    With ``shared``, settings, it is that of a shared group (groups/shared_group.py). Raises
    QueueBusy where the name is that of the other kind, and where the queue takes commands and has a
    group.
    """
    settings = () if shared is None else tuple(word for pair in shared.items() for word in pair)
    replies = yield [
        script(
            "subscribe",
            (
                keys.metadata,
                keys.msgid,
                keys.messages,
                keys.acks,
                *(() if shared is None else keys.group(subscription)),
            ),
            (subscription, start, MIN_RECORD_TTL_S, *settings),
        )
        for keys, start in zip(queues, starts, strict=True)
    ]
    for keys, reply in zip(queues, replies, strict=True):
        if not reply.isdigit():
            raise _busy_error(keys.name, subscription, reply.decode("utf-8", "replace"))
    return [int(reply) for reply in replies]


def _busy_error(queue: str, subscription: str, reply: str) -> QueueBusy:
    kind, _, group = reply.partition(":")
    if kind == "command":
        return QueueBusy(
            queue=queue,
            found=f"takes commands, which are for one group, and has group {group!r}",
            remedy=_ONE_GROUP_REMEDY,
        )
    return QueueBusy(
        queue=queue,
        found=f"has a group {subscription!r}, which is {kind}",
        remedy=_OTHER_GROUP_KIND_REMEDY,
    )


def subscriptions(queues: Sequence[QueueKeys]) -> Flow[list[dict[str, int]]]:
    """For each queue its subscriptions and their last acked ids."""
    replies = yield [command("HGETALL", keys.acks) for keys in queues]
    return [
        {
            _text(name): checked_id(keys.name, "acked id of a subscription", last)
            for name, last in zip(reply[0::2], reply[1::2], strict=True)
            if not name.startswith(b":")
        }
        for keys, reply in zip(queues, replies, strict=True)
    ]


def claim_subscriptions(
    queues: Sequence[QueueKeys], subscription: str, owner: str, most: int, most_of_secret: int
) -> Flow[list[tuple[str, str]]]:
    """Return the owner of a subscription in each queue; ``owner``'s from now on where there is none
    of this name.

    The result is a status and an owner: ok owner ('' when it was registered beside a federation
    server), missing, full ('secret': the secret has its share of places), or shared: it is that of
    a shared group. With ``most`` 0 none is registered.
    """
    replies = yield [
        script(
            "own",
            [
                key
                for keys in part
                for key in (keys.metadata, keys.acks, keys.owners, keys.lease(subscription))
            ],
            args,
        )
        for args in [
            (
                subscription,
                owner,
                most,
                SUBSCRIPTION_OWNER_TTL_S,
                federated_prefix(owner),
                most_of_secret,
            )
        ]
        for part in split_into_calls(queues, queues)
    ]
    return [(status.decode(), found.decode()) for reply in replies for status, found in reply]


def subscription_owners(queues: Sequence[QueueKeys]) -> Flow[list[dict[str, str]]]:
    """The subscriptions of each queue that federation servers have registered in its life, and
    whose they are.
    """
    replies = yield [
        call
        for keys in queues
        for call in (command("HGETALL", keys.owners), command("HGET", keys.metadata, "born"))
    ]
    found = []
    for flat, born in zip(replies[0::2], replies[1::2], strict=True):
        fields = dict(zip(flat[0::2], flat[1::2], strict=True))
        names = [name for name in fields if not name.startswith(b":")]
        found.append(
            {
                name.decode(): fields[name].decode()
                for name in names
                if fields.get(b":born:" + name, born or b"") == (born or b"")
            }
        )
    return found


def lease(
    queues: Sequence[QueueKeys],
    subscription: str,
    token: str,
    lease_ms: int,
    dead: Sequence[str],
    said: Announcement | None = None,
) -> Flow[list[str]]:
    """Try to become the reader of every queue. The result is who holds each afterwards: ``token``
    where it worked.

    ``dead`` names, per queue, a holder known to be dead that may be replaced ('' for none).
    """
    replies = yield [
        script(
            "lease",
            (
                keys.lease(subscription),
                *((*keys.peer_keys, keys.acks, keys.readers) if said else ()),
            ),
            (
                token,
                lease_ms,
                gone,
                *((said.field, said.record, lease_ms, said.own_of(keys.name)) if said else ()),
            ),
        )
        for keys, gone in zip(queues, dead, strict=True)
    ]
    return [reply.decode() for reply in replies]


def release(keys: QueueKeys, subscription: str, token: str) -> Flow[bool]:
    """Give the lease up. Whether it was still the token's."""
    return bool((yield script("release", (keys.lease(subscription),), (token,))))


def keep_alive(
    queues: Sequence[QueueKeys],
    subscription: str = "",
    token: str = "",
    lease_ms: int = 0,
    said: Announcement | None = None,
) -> Flow[list[int]]:
    """Touch every queue, renew its lease, and store the record of the reader. For each: 1 alive, 0
    missing, -1 another holds the lease. An empty token renews no lease.
    """
    replies = yield [
        script(
            "touch",
            [key for keys in part for key in (*keys.all, keys.lease(subscription), keys.readers)],
            (
                token,
                lease_ms,
                MIN_RECORD_TTL_S,
                MAX_MESSAGES_PER_ACK,
                *((said.field, said.record, said.hold_ms or lease_ms) if said else ()),
                *((said.own_of(keys.name) for keys in part) if said else ()),
            ),
        )
        for part in split_into_calls(
            queues, queues, QUEUES_PER_ANNOUNCEMENT if said else QUEUES_PER_CALL
        )
    ]
    return [value for reply in replies for value in reply]


def split_into_calls(
    items: Sequence[T], queues: Sequence[QueueKeys], most: int = QUEUES_PER_CALL
) -> list[Sequence[T]]:
    """Return the items of each call. In a cluster that is one queue: the next may be on another
    node.
    """
    most = 1 if queues and queues[0].cluster else most
    return list(slices(items, most))


def bytes_until(keys: QueueKeys, first: int, last: int, budget: int) -> Flow[tuple[int, int]]:
    """The last id of ``first..last`` such that the values up to it come to ``budget`` bytes
    (``first - 1`` when none fits), and their bytes.

    Exact for the first 1,000 messages or 1 MB. Beyond that, since a value must be copied to be
    measured, each counts as the longest where writers have noted that none is much longer than
    those were. Else one in SAMPLE_EVERY_MESSAGES is read, in many places: both numbers are
    estimates then, and close ones unless large messages stand together where none is looked at.
    """
    at, used = first - 1, 0
    while at < last:
        (reached, size, done), noted = yield [
            script("measure", (keys.messages,), (at + 1, last, budget - used)),
            command("HGET", keys.metadata, "sizes"),
        ]
        at, used = reached, used + size
        if done:
            break
        mean = max(1, used // (at - first + 1))
        longest = ValueSizeStats.parse(noted or b"").longest_of(at + 1, last)
        if longest is not None and longest <= mean * MAX_LONGEST_TO_MEAN_RATIO:
            rows = min(last - at, (budget - used) // max(1, longest))
            return at + rows, used + rows * longest
        likely = min(last - at, (budget - used) // mean)
        run = MIN_SAMPLE_RUN if mean <= LARGE_MESSAGE_BYTES else 1
        places = min(
            MAX_SAMPLE_PLACES * MIN_SAMPLE_RUN // run, likely // (SAMPLE_EVERY_MESSAGES * run)
        )
        if places >= MIN_SAMPLE_PLACES:
            run = (
                max(run, min(MAX_SAMPLE_RUN, likely // (SAMPLE_EVERY_MESSAGES * places)))
                if run > 1
                else 1
            )
            rows, size = _rows_within_budget(
                (yield _samples(keys, at + 1, likely // places, run, places)),
                likely // places,
                run,
                budget - used,
            )
            at, used = at + rows, used + size
    return at, used


def _samples(keys: QueueKeys, first: int, stride: int, run: int, places: int) -> list[RedisCall]:
    """In calls of a few places each."""
    starts = range(0, places, SAMPLE_PLACES_PER_CALL)
    return [
        script(
            "sample",
            (keys.messages,),
            (first + start * stride, stride, run, min(SAMPLE_PLACES_PER_CALL, places - start)),
        )
        for start in starts
    ]


def _rows_within_budget(
    sampled: Sequence[Sequence[int]], stride: int, run: int, budget: int
) -> tuple[int, int]:
    """Return the number of rows that fit the budget when every place stands for ``stride`` rows,
    and their bytes.
    """
    rows = used = 0
    for size in (size for part in sampled for size in part):
        part = size * stride // run
        if used + part > budget:
            fitting = (budget - used) * run // size
            return rows + fitting, used + fitting * size // run
        rows, used = rows + stride, used + part
    return rows, used
