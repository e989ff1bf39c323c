"""Shared groups of a queue: many holders, each message leased to one of them, settled in any order.

A group is a subscription (reading/reader_operations.py) whose acked id is its low-water mark:
everything up to it is settled. So what a group has still to settle stays stored, as for every other
reader. Times are those of the queue's Redis server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby, repeat
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias

from busmq_spark.queue.command_generators import Flow, command, script
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import CHUNK_BYTES, CHUNK_MESSAGES, decode_json
from busmq_spark.queue.queue import MAX_MESSAGES_PER_ACK
from busmq_spark.reading.reader_operations import states
from busmq_spark.reading.reader_record import Announcement
from busmq_spark.reading.reader_subscriptions import QueueSubscriptionStatus, list_subscriptions

GROUP_RECORD_TTL_S = 90 * 24 * 3600
"""Seconds for which the records of a shared group live without a holder."""
DEFAULT_LEASE_MS, DEFAULT_TRIES = 30_000, 3
"""Defaults."""
_SETTLED = {ord("d"): 1, ord("l"): 0, ord("s"): -1}
_DONE = b"d"
Action: TypeAlias = Literal["ack", "retry", "extend", "release"]


class LeasedMessage(NamedTuple):
    """A message that is leased to one holder of a shared group."""

    id: int
    value: bytes
    tries: int
    """The number of leases so far, including this one."""
    first_ms: int
    """The time of the first lease, in milliseconds since 1970."""
    token: str
    """Names the lease."""
    leased_ms: int = 0
    """The time of this lease, in milliseconds since 1970."""

    @property
    def is_first(self) -> bool:
        """Whether it was never leased before, so far as the group knows; also not by who gave it
        back, where no try was counted.
        """
        return self.tries == 1 and self.first_ms == self.leased_ms

    @property
    def text(self) -> str:
        """Return the value as text, like Message.text."""
        return self.value.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the value parsed, like Message.json."""
        return decode_json(self.value)


@dataclass(frozen=True, slots=True)
class MessageLeaseResult:
    """The result of :func:`lease`."""

    status: Literal["ok", "paused", "missing", "no_group"]
    """missing: no such queue. no_group: the group is of another life of the queue, or there is
    none.
    """
    deliveries: Sequence[LeasedMessage] = ()
    wait_ms: int = -1
    """Until a message is due again; -1 when none will be."""
    gone: int = 0
    """Messages that others took from the queue before this group had settled them."""


class SettleRequest(NamedTuple):
    """A settlement of deliveries: ``ack``, ``retry`` in ``ms``, ``extend`` to ``ms`` from now, or
    ``release``, which is ``retry`` without the try.
    """

    id: int
    token: str
    action: Action
    ms: int = 0
    messages: int = 1
    """The number of messages, with consecutive ids; ``id`` is that of the first."""
    leased_ms: int = 0
    """The time at which the token leased them, in milliseconds since 1970."""


def settlements_of(
    deliveries: Sequence[LeasedMessage], action: Action, ms: int = 0
) -> list[SettleRequest]:
    """Return settlements with the same action for all deliveries: one for those with consecutive
    ids that were leased together.
    """
    found: list[SettleRequest] = []
    first = expected = leased_ms = 0
    token: str | None = None
    for id, _, _, _, its_token, its_ms in deliveries:
        if id != expected or its_token != token:
            if token is not None:
                found.append(SettleRequest(first, token, action, ms, expected - first, leased_ms))
            first, token, leased_ms = id, its_token, its_ms
        expected = id + 1
    if token is not None:
        found.append(SettleRequest(first, token, action, ms, expected - first, leased_ms))
    return found


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group of a queue, as :func:`list_groups` finds it."""

    subscription: QueueSubscriptionStatus
    """Its name and how far it is. Of a shared group ``last`` is the low-water mark, everything up
    to which is settled.
    """
    shared: bool
    in_flight: int = 0
    """Messages of a shared group that are leased now."""
    waiting: int = 0
    """Messages of a shared group that wait to be leased again: for a retry, or since their lease
    has ended.
    """
    unread: int = 0
    """Messages that were never leased or, of an ordered group, are not acked."""
    paused: bool = False

    @property
    def name(self) -> str:
        """The name of the group."""
        return self.subscription.name

    @property
    def last(self) -> int:
        """Everything up to this id is acknowledged."""
        return self.subscription.last

    @property
    def behind_s(self) -> int | None:
        """Seconds since the first message came that is not acknowledged; return None where it is
        not known.
        """
        return self.subscription.behind_s

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.in_flight or self.waiting or self.unread)


def lease(  # noqa: PLR0913  # the fields of a call
    keys: QueueKeys,
    name: str,
    token: str,
    most: int,
    *,
    again: bool = False,
    apart: bool = False,
    said: Announcement | None = None,
) -> Flow[MessageLeaseResult]:
    """Lease up to ``most`` messages (1,000 a call at most), under a token that was never used
    before.

    After a lost reply repeat the call with ``again`` and its token; it leases nothing more.
    ``apart``: they will be settled one by one. ``said``: the record of the holder, to be stored.
    """
    noted = (keys.msgid, keys.readers) if said else ()
    names = (keys.metadata, keys.messages, keys.acks, *keys.group(name), *noted)
    args = (
        token,
        min(most, CHUNK_MESSAGES),
        CHUNK_BYTES,
        GROUP_RECORD_TTL_S,
        int(again),
        DEFAULT_LEASE_MS,
        int(apart),
        *((said.field, said.record, said.hold_ms) if said else ()),
    )
    status, *found = yield script("group_lease", names, args, idempotent=False)
    if not found:
        return MessageLeaseResult(status.decode())
    now, wait, gone, *runs = found
    deliveries: list[LeasedMessage] = []
    for id, tries, first, *values in runs:
        columns = (
            range(int(id), int(id) + len(values)),
            values,
            repeat(tries),
            repeat(int(first)),
            repeat(token),
            repeat(int(now)),
        )
        deliveries += map(LeasedMessage._make, zip(*columns, strict=False))
    return MessageLeaseResult(status.decode(), deliveries, wait, gone)


def settle(
    keys: QueueKeys,
    name: str,
    born: str,
    settlements: Sequence[SettleRequest],
    *,
    again: bool = False,
) -> Flow[list[int] | None]:
    """Settle deliveries. Of each message: 1 done, 0 its lease is another's now, -1 it was settled
    before. The result is None when the group is of another life or gone.

    After a lost reply repeat the call with ``again``: then -1 says that this token settled the
    message, and 0 that another did. At most 1,000 messages a call.
    """
    args: list[str | int] = [name, born, MAX_MESSAGES_PER_ACK, GROUP_RECORD_TTL_S, int(again)]
    for how, some in groupby(settlements, key=itemgetter(1, 5, 2, 3)):
        runs = [(each.id, each.messages) for each in some]
        args += [*how, len(runs), *chain.from_iterable(runs)]
    names = (
        keys.metadata,
        keys.messages,
        keys.acks,
        *keys.group(name),
        keys.msgid,
        keys.clock,
        keys.bytes,
    )
    status, *results = yield script("group_settle", names, args, idempotent=False)
    if status != b"ok":
        return None
    [letters] = results
    return (
        [1] * len(letters)
        if letters.count(_DONE) == len(letters)
        else [_SETTLED[letter] for letter in letters]
    )


def pause(keys: QueueKeys, name: str, *, paused: bool) -> Flow[bool]:
    """Let the holders of a shared group lease nothing, or again. Whether there is such a group."""
    group, *_ = keys.group(name)
    if not (yield command("HEXISTS", group, "born")):
        return False
    yield command("HSET", group, "paused", 1) if paused else command("HDEL", group, "paused")
    return True


def read_settings(keys: QueueKeys, name: str) -> Flow[dict[str, str]]:
    """Return the stored fields of a shared group; empty when there is none."""
    reply = yield command("HGETALL", keys.group(name)[0])
    return {
        field.decode(): value.decode("utf-8", "replace")
        for field, value in zip(reply[0::2], reply[1::2], strict=True)
    }


def group_settings(keys: QueueKeys, name: str) -> Flow[dict[str, str | int]]:
    """Return the settings of a shared group, as a new group of another queue takes them."""
    stored = yield from read_settings(keys, name)
    names = ("dead", "lease_ms", "limit", "tries")
    return {field: stored[field] for field in names if field in stored}


def are_leased(keys: QueueKeys, name: str, ids: Sequence[int]) -> Flow[list[bool]]:
    """Of each message, whether a shared group of this name has leased it and it is not settled."""
    if not ids:
        return []
    return list(map(bool, (yield script("group_has", keys.group(name), ids))))


def list_groups(keys: QueueKeys) -> Flow[list[GroupState]]:
    """The groups of a queue, by name."""
    found: list[GroupState] = []
    [state] = yield from states([(keys, -1)])
    for each in (yield from list_subscriptions(keys)):
        if not (yield command("HEXISTS", keys.acks, f":shared:{each.name}")):
            found.append(
                GroupState(
                    each, shared=False, unread=max(0, state.last_id - max(each.last, state.floor))
                )
            )
            continue
        stored = yield from read_settings(keys, each.name)
        in_flight, held = yield script("group_count", keys.group(each.name), ())
        newest = int(stored.get("next", stored.get("newest", "0")))
        unread = max(0, state.last_id - max(each.last, state.floor, newest))
        found.append(
            GroupState(each, True, in_flight, held - in_flight, unread, "paused" in stored)
        )
    return found
