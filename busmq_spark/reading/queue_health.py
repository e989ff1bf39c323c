"""The health of many queues for an operator, those with damaged keys among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from busmq_spark.errors import QueueDamaged
from busmq_spark.queue.command_generators import Flow, script, slices
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.reader_operations import QueueState, checked_id, split_into_calls

QUEUES_PER_STEP = 2000
"""Queues of one round trip; their replies stay below a few hundred KB."""
QUEUES_PER_CALL = 50
"""Queues of one script call, which takes Redis about a millisecond."""
_ITEMS = 12


@dataclass(frozen=True, slots=True)
class QueueHealth:
    """The state of a queue, and what an operator has to know about its keys."""

    name: str
    state: QueueState
    expires_s: int
    """Seconds until the queue expires, unless a client uses it; -1 when it never does."""
    origin: str
    """The origin of a mirror, as its metadata has it; empty for another queue."""
    acked: Mapping[str, int]
    """Subscription → last acked id."""
    used_s: Mapping[str, int]
    """Subscription → when it was last in use, in seconds since 1970 by the server's clock."""


@dataclass(frozen=True, slots=True)
class DamagedQueue:
    """A queue whose keys hold what no program of the bus writes."""

    name: str
    reason: str


def read_health(queues: Sequence[QueueKeys]) -> Flow[list[QueueHealth | DamagedQueue]]:
    """Return the health of each queue of one server; queues that went away are left out."""
    found: list[QueueHealth | DamagedQueue] = []
    for part in slices(queues, QUEUES_PER_STEP):
        replies = yield [
            script(
                "health",
                [
                    key
                    for keys in some
                    for key in (keys.metadata, keys.messages, keys.msgid, keys.acks, keys.toack)
                ],
                (),
            )
            for some in split_into_calls(part, part, QUEUES_PER_CALL)
        ]
        rows = [row for reply in replies for row in zip(*[iter(reply)] * _ITEMS, strict=True)]
        for keys, row in zip(part, rows, strict=True):
            health = _parse_health(keys.name, row)
            if health is not None:
                found.append(health)
    return found


def _parse_health(name: str, row: tuple[Any, ...]) -> QueueHealth | DamagedQueue | None:
    ttl_s, born, maxsize, last, oldest, newest, count, done, expires_s, origin, damage, acks = row
    if damage:
        return DamagedQueue(name, damage.decode("utf-8", "replace"))
    if not ttl_s:
        return None
    texts = [(field.decode("utf-8", "replace"), value) for field, value in _pairs(acks)]
    try:
        state = QueueState(
            ttl_s,
            born.decode("utf-8", "replace"),
            maxsize,
            last_id := checked_id(name, "last id", last),
            checked_id(name, "oldest stored id", oldest or b"0"),
            checked_id(name, "newest stored id", newest or b"0"),
            count,
            "",
            "",
            min(last_id, checked_id(name, "id that all have acknowledged", done or b"0")),
        )
        acked = {
            field: checked_id(name, "acked id of a subscription", value)
            for field, value in texts
            if not field.startswith(":")
        }
    except QueueDamaged as error:
        return DamagedQueue(name, f"{error.details['found']}, not {error.details['expected']}")
    head = ":at:"
    used_s = {
        field.removeprefix(head): int(value)
        for field, value in texts
        if field.startswith(head) and value.isdigit()
    }
    return QueueHealth(name, state, expires_s, origin.decode("utf-8", "replace"), acked, used_s)


def _pairs(flat: Any) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[0::2], flat[1::2], strict=True)) if isinstance(flat, list) else []
