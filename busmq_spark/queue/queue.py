"""The ordered queue: create, append, take, acknowledge. Compatible with npm busmq 3.1.0 on the same
keys (protocol chapter 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from busmq_spark.errors import ConfigError, QueueMissing, UnconfirmedLost
from busmq_spark.queue.command_generators import Flow, command, script
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import CHUNK_BYTES, CHUNK_MESSAGES, MAX_ID, Message, chunks

MIN_RECORD_TTL_S = 7 * 24 * 3600
"""Seconds for which our own records outlive a queue whose ttl is shorter: a query may be down
longer than npm peers keep a queue of 30 s alive.
"""
MAX_MESSAGES_PER_ACK = 2000
"""Most messages dropped, restored or given back in one call: even if each is a list node of its
own, Redis frees them in about 2 ms.
"""


@dataclass(frozen=True, slots=True)
class AttachResult:
    """The facts about an attached queue: ``born`` names its incarnation, ``existed`` is true when a
    client had created it before.
    """

    existed: bool
    ttl_s: int
    maxsize: int
    born: str
    taken: bool = False
    """Whether it keeps what is acknowledged, and a reader that is no group has taken messages from
    its head.
    """


def attach(
    keys: QueueKeys,
    born: str,
    *,
    ttl_s: int,
    maxsize: int = 0,
    discover: bool = False,
    create: bool = True,
) -> Flow[AttachResult]:
    """Create the queue, or adopt the one that exists with its own ttl and maxsize.

    ``born`` is a fresh random name, kept only if the queue has none yet. Raises QueueMissing when
    it does not exist and ``create`` is false.
    """
    [attached] = yield from attach_all(
        [keys], [born], ttl_s=ttl_s, maxsize=maxsize, discover=discover, create=create
    )
    return attached


def attach_all(
    queues: Sequence[QueueKeys],
    born: Sequence[str],
    *,
    ttl_s: int,
    maxsize: int = 0,
    discover: bool = False,
    create: bool = True,
) -> Flow[list[AttachResult]]:
    """Attach many queues, each with a name of its own in ``born``, in one round trip."""
    _check_ttl(ttl_s)
    args = (ttl_s, max(0, maxsize), "true" if discover else "false")
    replies = yield [
        script("attach", keys.all, (*args, name, int(create), MIN_RECORD_TTL_S))
        for keys, name in zip(queues, born, strict=True)
    ]
    for keys, reply in zip(queues, replies, strict=True):
        if reply[0] < 0:
            raise QueueMissing(queue=keys.name)
    return [
        AttachResult(
            bool(reply[0]), reply[1], reply[2], reply[3].decode("utf-8", "replace"), bool(reply[4])
        )
        for reply in replies
    ]


def push(keys: QueueKeys, value: bytes) -> Flow[int | None]:
    """Append one message; the result is its id, or None when the queue is full. Raises QueueMissing
    when it is not attached.
    """
    first, stored = yield from append(keys, next(chunks((value,))))
    return first if stored else None


def push_many(keys: QueueKeys, values: Sequence[bytes]) -> Flow[int]:
    """Append messages in order; the result is how many were stored: fewer than given when the queue
    got full.

    Each chunk is atomic. A consumer is notified once per chunk. Raises QueueMissing when the queue
    is not attached.
    """
    done = 0
    for chunk in chunks(values):
        _, stored = yield from append(keys, chunk)
        done += stored
        if stored < len(chunk):
            break
    return done


def append(keys: QueueKeys, values: Sequence[bytes]) -> Flow[tuple[int, int]]:
    """Append one chunk (see :func:`chunks`) in one script call: the first id, and how many were
    stored. Raises QueueMissing.
    """
    # Not idempotent: after a broken connection it is unknown whether the messages are stored, so
    # the caller decides.
    first, stored = yield script(
        "push", keys.appending, (keys.available, *values), idempotent=False
    )
    if stored < 0:
        raise QueueMissing(queue=keys.name)
    return first, stored


LOST_REASONS = {
    "recreated": "the queue has been created anew since then",
    "reissued": "id {id} has another message now: a fail-over took the messages back",
    "rolled-back": "id {id} was given to no message: a fail-over took the messages back",
    "removed": (
        "id {id} is stored no more: a reader has acknowledged it, or a limit has deleted it, or a"
        " fail-over took it back"
    ),
}
"""The sentence of UnconfirmedLost for each kind."""


def confirm(keys: QueueKeys, born: str, marks: Mapping[int, str]) -> Flow[None]:
    """Check that messages, by id and fingerprint, are stored in this life of the queue. Raises
    UnconfirmedLost.
    """
    words = [word for pair in marks.items() for word in pair]
    names = (keys.metadata, keys.messages, keys.msgid)
    size = 2 * CHUNK_MESSAGES
    replies = yield [
        script("confirm", names, (born, *words[at : at + size]))
        for at in range(0, len(words), size)
    ]
    for kind, id in ((kind.decode(), int(id)) for kind, id in replies):
        if kind:
            raise UnconfirmedLost(
                queue=keys.name,
                first=min(marks),
                last=max(marks),
                kind=kind,
                reason=LOST_REASONS[kind].format(id=id),
            )


def pop(
    keys: QueueKeys,
    *,
    reliable: bool = False,
    ttl_s: int = 0,
    most: int = 1,
    most_bytes: int = CHUNK_BYTES,
) -> Flow[list[Message]]:
    """Take up to ``most`` messages from the head. Reliable ones stay recorded until :func:`ack`.

    At most CHUNK_MESSAGES a call; stops after the message that reaches ``most_bytes``.
    """
    if reliable:
        _check_ttl(ttl_s)
    names = (keys.messages, keys.toack) if reliable else (keys.messages,)
    reply = yield script(
        "pop", names, (min(most, CHUNK_MESSAGES), most_bytes, ttl_s), idempotent=False
    )
    return _messages(reply)


def take(
    keys: QueueKeys, record: str, after: int, *, most: int, ttl_s: int, token: str = ""
) -> Flow[list[Message] | None]:
    """Take up to ``most`` messages from the head into the list ``record``; safe to repeat, since a
    reply that was lost is found there.

    ``after`` is the id received last (0: none). With a ``token`` the record is ``toack`` and None
    means that another consumer has the lease; without one the record is the consumer's own and
    holds the last batch only.
    """
    _check_ttl(ttl_s)
    args = (after, min(most, CHUNK_MESSAGES), CHUNK_BYTES, ttl_s, token)
    reply = yield script("take", _recording(keys, record, token), args)
    return None if reply == -1 else _messages(reply)


def give_back(
    keys: QueueKeys, record: str, handed: int, *, ttl_s: int, token: str = ""
) -> Flow[int]:
    """Return what :func:`take` took after the id ``handed`` (0: everything) to the head of the
    queue. Return the number of returned messages.

    Safe to repeat. -1 when another process has the lease.
    """
    _check_ttl(ttl_s)
    returned = 0
    while True:
        found: int = yield script(
            "give_back",
            _recording(keys, record, token),
            (handed, keys.available, ttl_s, token, MAX_MESSAGES_PER_ACK),
        )
        if found < MAX_MESSAGES_PER_ACK:
            return found if found < 0 else returned + found
        returned += found


def _recording(keys: QueueKeys, record: str, token: str) -> tuple[str, ...]:
    return (keys.messages, keys.toack, keys.lease("")) if token else (keys.messages, record)


def read_after(
    keys: QueueKeys, last: int, position: int, most: int, most_bytes: int = CHUNK_BYTES
) -> Flow[list[Message]]:
    """Up to ``most`` messages after the id ``last``; while that is 0, from ``position`` on (0 is
    the oldest). Nothing is removed.

    No message comes after the one that reaches ``most_bytes``.
    """
    return _messages(
        (yield script("after", (keys.messages, keys.msgid), (last, position, most, most_bytes)))
    )


@dataclass(frozen=True, slots=True)
class ReadAfterResult:
    """The messages after a position, and the state of the queue at that time: its life, the newest
    id, the mark of the message at the position ('': not stored).
    """

    messages: list[Message]
    born: str
    last_id: int
    mark: str


def read_following(keys: QueueKeys, last: int, most: int) -> Flow[ReadAfterResult]:
    """Read after an id, like :func:`read_after`, with evidence whether the queue is still the one
    in which that id was read.
    """
    reply = yield script(
        "after",
        (keys.messages, keys.msgid, keys.metadata),
        (last, 0, min(most, CHUNK_MESSAGES), CHUNK_BYTES),
    )
    born, given, mark, pairs = reply
    return ReadAfterResult(
        _messages(pairs), born.decode("utf-8", "replace"), int(given), mark.decode()
    )


def ack(keys: QueueKeys, last: int, *, ttl_s: int, restore: bool = False) -> Flow[None]:
    """Acknowledge everything up to ``last`` that a reliable consumer took; ``restore`` puts the
    rest back at the head, ids kept.
    """
    check_id(last)
    _check_ttl(ttl_s)
    names = (keys.toack, keys.messages) if restore else (keys.toack,)
    while (yield script("ack", names, (last, ttl_s, MAX_MESSAGES_PER_ACK))) == MAX_MESSAGES_PER_ACK:
        pass


def clock_ms(keys: QueueKeys) -> Flow[int]:
    """Milliseconds since 1970 by the clock of the queue's server; 0 without the right to ask."""
    return int((yield script("server_time", (keys.metadata,), ())))


def count(keys: QueueKeys) -> Flow[int]:
    """Return the number of messages that some reader has not acknowledged, without those that a
    reliable consumer took, and without kept ones.
    """
    waiting: int = (yield script("kept", (keys.metadata, keys.messages), ()))[0]
    return waiting


def exists(keys: QueueKeys) -> Flow[bool]:
    """Whether the queue's metadata exists."""
    return bool((yield command("EXISTS", keys.metadata)))


def metadata(keys: QueueKeys) -> Flow[dict[str, str]]:
    """All metadata fields; empty when the queue does not exist."""
    reply = yield command("HGETALL", keys.metadata)
    texts = [item.decode("utf-8", "replace") for item in reply]
    return dict(zip(texts[0::2], texts[1::2], strict=True))


def set_metadata(keys: QueueKeys, fields: Mapping[str, str], ttl_s: int) -> Flow[None]:
    """Set metadata fields and let the metadata live for another ``ttl_s`` (protocol 1.10)."""
    _check_ttl(ttl_s)
    yield [
        command("HSET", keys.metadata, *(word for pair in fields.items() for word in pair)),
        command("EXPIRE", keys.metadata, ttl_s),
    ]


def queue_cap_field(cap: int | None, overflow: str | None) -> str | None:
    """Return the field of the metadata that caps a queue: '' for no cap, None when the caller says
    nothing. Raises ConfigError.
    """
    if overflow not in (None, "keep", "drop-oldest"):
        raise ConfigError(
            reason=(
                f"overflow is {overflow!r}; expected keep (what a group has not acknowledged stays,"
                " over the cap) or drop-oldest"
            )
        )
    if cap is None:
        if overflow is not None:
            raise ConfigError(
                reason=(
                    f"overflow={overflow!r} says what becomes of messages over a cap, and there is"
                    " none; add cap=…"
                )
            )
        return None
    if type(cap) is not int or not 0 <= cap <= MAX_ID:
        raise ConfigError(
            reason=(
                f"cap is {cap!r}; expected a whole number: how many messages stay when others are"
                " pushed, 0 for no cap"
            )
        )
    return f"{cap}{':drop' if overflow == 'drop-oldest' else ''}" if cap else ""


def set_cap(keys: QueueKeys, rule: str) -> Flow[None]:
    """Cap a queue, as :func:`queue_cap_field` says. Writes nothing where it is capped so: a worker
    enters on a full Redis, too.
    """
    if ((yield command("HGET", keys.metadata, "cap")) or b"").decode("utf-8", "replace") == rule:
        return
    yield (
        command("HSET", keys.metadata, "cap", rule)
        if rule
        else command("HDEL", keys.metadata, "cap")
    )


def touch(keys: QueueKeys, ttl_s: int) -> Flow[None]:
    """Let the queue live for another ``ttl_s``."""
    _check_ttl(ttl_s)
    yield [command("EXPIRE", key, ttl_s) for key in keys.peer_keys]


def remember_announcement(keys: QueueKeys, source: str, ttl_s: int) -> Flow[bool]:
    """Remember for ``ttl_s`` that the bus of ``source`` has this queue (protocol 1.11); false when
    it is a queue of this bus, which stays so.
    """
    _check_ttl(ttl_s)
    return bool((yield script("announced", (keys.metadata,), (source, ttl_s))))


def flush(keys: QueueKeys) -> Flow[bool]:
    """Delete every stored message; ids go on, un-acked messages stay (protocol 1.10). Whether there
    were any.
    """
    return bool((yield command("DEL", keys.messages)))


def newest_id(keys: QueueKeys) -> Flow[int]:
    """The id of the newest stored message; 0 when none is stored."""
    return int((yield command("LINDEX", keys.messages, -2)) or 0)


def trim(keys: QueueKeys, last: int) -> Flow[None]:
    """Delete every stored message up to the id ``last``: unlike :func:`flush` it may come late, or
    again, and deletes nothing newer.
    """
    while (
        yield script("trim", (keys.messages,), (last, MAX_MESSAGES_PER_ACK))
    ) == MAX_MESSAGES_PER_ACK:
        pass


def delete(keys: QueueKeys) -> Flow[None]:
    """Remove the queue with everything in it, and where its subscriptions are.

    The progress of sinks stays until its ttl: a sink that is half-way through a batch appends the
    rest of it to the next life of the queue, once.
    """
    yield [
        command("DEL", *keys.peer_keys, keys.acks, keys.clock, keys.bytes, keys.readers),
        command("EXPIRE", keys.sinks, MIN_RECORD_TTL_S),
    ]


def check_id(last: object) -> None:
    """Raise ConfigError for what is no id to ack."""
    # An id that is no number makes npm's script lose a message (protocol Q26).
    if not isinstance(last, int) or not 0 <= last <= MAX_ID:
        raise ConfigError(
            reason=f"the id to ack is {last!r}; expected a whole number from 0 to {MAX_ID}"
        )


def _check_ttl(ttl_s: int) -> None:
    if ttl_s < 1:
        raise ConfigError(
            reason=(
                f"the ttl is {ttl_s} s; expected at least 1, since Redis deletes at once what may"
                " live for less"
            )
        )


def _messages(reply: list[bytes]) -> list[Message]:
    return [Message(int(id), value) for id, value in zip(reply[0::2], reply[1::2], strict=True)]
