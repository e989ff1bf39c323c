"""Shared groups of a queue: many holders, each message leased to one of them, settled in any order.

A group is a subscription (core/state.py) whose acked id is its low-water mark: everything up to it is settled. So what a group has still to settle
stays stored, as for every other reader. Times are those of the queue's Redis server.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias

from busmq_spark.core.flow import Flow, command, script
from busmq_spark.core.keys import QueueKeys
from busmq_spark.core.message import CHUNK_BYTES, CHUNK_MESSAGES
from busmq_spark.core.queue import ACK_MOST, clock_ms
from busmq_spark.core.state import states
from busmq_spark.core.subscription import Subscription, listed

TTL_S = 90 * 24 * 3600
"""How long the records of a shared group live without a holder."""
LEASE_MS, TRIES = 30_000, 3
"""Defaults."""
_SETTLED = {ord("d"): 1, ord("l"): 0, ord("s"): -1}
Action: TypeAlias = Literal["ack", "retry", "extend", "release"]


class Delivery(NamedTuple):
    """A message that is leased to one holder of a shared group."""

    id: int
    value: bytes
    tries: int
    """How often it was leased, with this time."""
    first_ms: int
    """When it was leased first, in milliseconds since 1970."""
    token: str
    """Names the lease."""
    leased_ms: int = 0
    """When it was leased, this time, in milliseconds since 1970."""

    @property
    def text(self) -> str:
        """As of a message of a queue."""
        return self.value.decode("utf-8", "replace")

    def json(self) -> Any:
        """As of a message of a queue."""
        return json.loads(self.value)


@dataclass(frozen=True, slots=True)
class Leased:
    """What :func:`lease` found."""

    status: Literal["ok", "paused", "missing", "no_group"]
    """missing: no such queue. no_group: the group is of another life of the queue, or there is none."""
    deliveries: Sequence[Delivery] = ()
    now_ms: int = 0
    wait_ms: int = -1
    """Until a message is due again; -1 when none will be."""
    gone: int = 0
    """Messages that others took from the queue before this group had settled them."""


class Settlement(NamedTuple):
    """What shall become of a delivery: ``ack``, ``retry`` in ``ms``, ``extend`` its lease to ``ms`` from now, or ``release`` it, as if not leased."""

    id: int
    token: str
    action: Action
    ms: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """One group of one queue, as :func:`groups` finds it."""

    subscription: Subscription
    """Its name and how far it is. Of a shared group ``last`` is the low-water mark, everything up to which is settled."""
    shared: bool
    in_flight: int = 0
    """Messages of a shared group that are leased now."""
    waiting: int = 0
    """Messages of a shared group that wait to be leased again: for a retry, or since their lease has ended."""
    unread: int = 0
    """Messages that were never leased or, of an ordered group, are not acked."""
    paused: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return self.subscription.name

    @property
    def last(self) -> int:
        """Everything up to this id is acknowledged."""
        return self.subscription.last

    @property
    def behind_s(self) -> int | None:
        """Seconds since the first message came that is not acknowledged; None where that is not known."""
        return self.subscription.behind_s

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.in_flight or self.waiting or self.unread)


def lease(keys: QueueKeys, name: str, token: str, most: int, *, again: bool = False) -> Flow[Leased]:
    """Lease up to ``most`` messages (1,000 a call at most), under a token that was never used before.

    After a lost reply repeat the call with ``again`` and its token; it leases nothing more.
    """
    names = (keys.metadata, keys.messages, keys.acks, *keys.group(name))
    args = (token, min(most, CHUNK_MESSAGES), CHUNK_BYTES, TTL_S, int(again), LEASE_MS)
    status, *found = yield script("group_lease", names, args, idempotent=False)
    if not found:
        return Leased(status.decode())
    now, wait, gone, new, *items = found
    fours, now_ms = zip(items[0::4], items[1::4], items[2::4], items[3::4], strict=True), int(now)
    deliveries = [Delivery(int(id), value, tries, int(first), token, now_ms) for id, value, tries, first in fours]
    deliveries += [Delivery(int(id), value, 1, now_ms, token, now_ms) for id, value in zip(new[0::2], new[1::2], strict=True)]
    return Leased(status.decode(), deliveries, now_ms, wait, gone)


def settle(keys: QueueKeys, name: str, born: str, settlements: Sequence[Settlement]) -> Flow[list[int] | None]:
    """Settle deliveries. For each: 1 done, 0 its lease is another's now, -1 it was settled before. None where the group is of another life, or gone.

    Safe to repeat, for a caller that takes -1 for done then. At most 1,000 a call.
    """
    args: list[str | int] = [name, born, ACK_MOST, TTL_S]
    for how, some in groupby(settlements, key=itemgetter(1, 2, 3)):
        ids = [each.id for each in some]
        args += [*how, len(ids), *ids]
    names = (keys.metadata, keys.messages, keys.acks, *keys.group(name), keys.msgid, keys.clock, keys.bytes)
    status, *results = yield script("group_settle", names, args, idempotent=False)
    return [_SETTLED[letter] for letter in results[0]] if status == b"ok" else None


def pause(keys: QueueKeys, name: str, *, paused: bool) -> Flow[bool]:
    """Let the holders of a shared group lease nothing, or again. Whether there is such a group."""
    group, *_ = keys.group(name)
    if not (yield command("HEXISTS", group, "next")):
        return False
    yield command("HSET", group, "paused", 1) if paused else command("HDEL", group, "paused")
    return True


def settings(keys: QueueKeys, name: str) -> Flow[dict[str, str]]:
    """What is stored of a shared group; empty when there is none."""
    reply = yield command("HGETALL", keys.group(name)[0])
    return {field.decode(): value.decode("utf-8", "replace") for field, value in zip(reply[0::2], reply[1::2], strict=True)}


def groups(keys: QueueKeys) -> Flow[list[Group]]:
    """The groups of a queue, by name."""
    found: list[Group] = []
    now = yield from clock_ms(keys)
    [state] = yield from states([(keys, -1)])
    for each in (yield from listed(keys)):
        if not (yield command("HEXISTS", keys.acks, f":shared:{each.name}")):
            found.append(Group(each, shared=False, unread=max(0, state.last_id - max(each.last, state.floor))))
            continue
        stored = yield from settings(keys, each.name)
        _, due, _ = keys.group(each.name)
        held, in_flight = yield [command("ZCARD", due), command("ZCOUNT", due, f"({now}", "+inf")]
        unread = max(0, state.last_id - max(each.last, state.floor, int(stored.get("next", 0))))
        found.append(Group(each, True, in_flight, held - in_flight, unread, "paused" in stored))
    return found
