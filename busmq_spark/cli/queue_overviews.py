"""Overviews of queues and their readers, read in a few round trips whatever their number.

The current readers of a queue: the leases of running queries. A lease outlives its query by some
seconds; dead holders are marked if known.

Everything there is to know about queues, gathered in a few round trips whatever their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from busmq_spark.cli.output import format_duration
from busmq_spark.cli.queue_lookup import LocatedQueue
from busmq_spark.errors import BusError, QueueDamaged, ServerRefused
from busmq_spark.queue.command_generators import Flow, RedisCall, command, slices
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.reader_operations import QueueState, states, subscriptions
from busmq_spark.reading.readers import describe_holder_of
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.lease_token import describe_holder, is_dead


def lease_calls(keys: QueueKeys, names: Sequence[str]) -> list[RedisCall]:
    """Return the calls that look up the leases of these subscriptions ('' is a reader without one);
    two calls each.
    """
    return [
        call
        for name in names
        for call in (command("GET", keys.lease(name)), command("PTTL", keys.lease(name)))
    ]


def live_holders(names: Sequence[str], replies: Sequence[bytes | int | None]) -> dict[str, int]:
    """Subscription → milliseconds left, of the holders that may be alive."""
    return {
        name: int(left_ms)
        for name, token, left_ms in zip(names, replies[0::2], replies[1::2], strict=True)
        if isinstance(token, bytes)
        and left_ms is not None
        and int(left_ms) >= 0
        and not is_dead(token.decode("utf-8", "replace"))
    }


def describe_holders(place: LocatedQueue) -> list[str]:
    """Return one text for each reader that holds a lease on the queue or on one of its
    subscriptions.
    """
    names = ["", *place.link.run(subscriptions([place.keys]))[0]]
    replies = place.link.execute(lease_calls(place.keys, names))
    tokens = dict(zip(names, replies[0::2], strict=True))
    return [
        f"{f'subscription {name}, ' if name else ''}"
        f"{describe_lease_holder(place, name, tokens[name].decode('utf-8', 'replace'))}; its lease"
        f" is renewed or over within {format_duration(left_ms / 1000 + 1)}"
        for name, left_ms in live_holders(names, replies).items()
    ]


def describe_lease_holder(place: LocatedQueue, reader: str, token: str) -> str:
    """Return a description of the holder of a lease for people: by its record, or by its token
    where the record cannot be read.
    """
    try:
        return place.link.run(describe_holder_of(place.keys, reader, token, describe_holder))
    except BusError:
        return describe_holder(token)


T = TypeVar("T")
QUEUES_PER_STEP = 500


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """An overview of a queue. ``unacked``: taken by a reliable consumer and not acknowledged;
    ``readers``: subscription → milliseconds left of its lease.
    """

    name: str
    server: str
    state: QueueState
    unacked: int
    expires_ms: int
    subscriptions: dict[str, int]
    readers: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        state = self.state
        return {
            "queue": self.name,
            "messages": state.waiting,
            "kept": state.kept_count,
            "oldest_id": state.oldest or None,
            "newest_id": state.newest or None,
            "last_id": state.last_id,
            "unacked": self.unacked,
            "ttl_s": state.ttl_s,
            "expires_in_s": round(self.expires_ms / 1000, 1) if self.expires_ms >= 0 else None,
            "maxsize": state.maxsize or None,
            "subscriptions": self.subscriptions,
            "readers": [
                {"subscription": name or None, "lease_s": round(ms / 1000, 1)}
                for name, ms in self.readers.items()
            ],
            "incarnation": state.born or None,
            "server": self.server,
        }


@dataclass(frozen=True, slots=True)
class DamagedQueueOverview:
    """A queue that cannot be shown: its keys hold what no program of the bus writes. ``reason``
    says what was found.
    """

    name: str
    server: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"queue": self.name, "damaged": self.reason, "server": self.server}


def read_all_overviews(
    link: Link, queues: Sequence[QueueKeys]
) -> list[QueueOverview | DamagedQueueOverview]:
    """Queues of one server, those with damaged keys among them: one of these does not hide the
    others.
    """
    server = link.endpoint.masked_url
    found, damaged = ask_undamaged(lambda part: link.run(read_overviews(part, server)), queues)
    return [
        *found,
        *(DamagedQueueOverview(name, server, reason) for name, reason in damaged.items()),
    ]


def ask_undamaged(
    ask: Callable[[Sequence[QueueKeys]], list[T]], queues: Sequence[QueueKeys]
) -> tuple[list[T], dict[str, str]]:
    """Return the answers of ``ask`` for the queues with sound keys, and the findings for the
    others.
    """
    try:
        return ask(queues), {}
    except (QueueDamaged, ServerRefused) as error:
        if (
            isinstance(error, ServerRefused)
            and "WRONGTYPE" not in str(error)
            and "wrong kind" not in str(error)
        ):
            raise
        if len(queues) == 1:
            return [], {queues[0].name: str(error)}
    half = len(queues) // 2
    (some, damaged), (rest, more) = (
        ask_undamaged(ask, queues[:half]),
        ask_undamaged(ask, queues[half:]),
    )
    return some + rest, {**damaged, **more}


def read_overviews(queues: Sequence[QueueKeys], server: str) -> Flow[list[QueueOverview]]:
    """Queues of one server; those that went away meanwhile are left out."""
    found = []
    for part in slices(queues, QUEUES_PER_STEP):
        known = yield from states([(keys, -1) for keys in part])
        acked = yield from subscriptions(part)
        asked = [(keys, ["", *names]) for keys, names in zip(part, acked, strict=True)]
        replies = yield [
            call
            for keys, names in asked
            for call in (
                command("LLEN", keys.toack),
                command("PTTL", keys.metadata),
                *lease_calls(keys, names),
            )
        ]
        answers = iter(replies)
        for (keys, names), state, acks in zip(asked, known, acked, strict=True):
            unacked, expires_ms = next(answers) // 2, next(answers)
            leases = live_holders(names, list(islice(answers, 2 * len(names))))
            if state.exists:
                found.append(
                    QueueOverview(keys.name, server, state, unacked, expires_ms, acks, leases)
                )
    return found
