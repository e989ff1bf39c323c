"""Subscriptions of a queue for operators: their acked positions with times, and the messages that
stay stored for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from busmq_spark.arguments import check_text
from busmq_spark.errors import ConfigError, QueueBusy
from busmq_spark.option_parsing import subscription as checked
from busmq_spark.queue.command_generators import Flow, command, script
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import MIN_RECORD_TTL_S
from busmq_spark.reading.reader_operations import (
    CumulativeAckRequest,
    QueueState,
    ack_to,
    states,
    subscribe,
    subscriptions,
)
from busmq_spark.reading.times_of_ids import ages, id_at, note_times_if_allowed
from busmq_spark.starting_offsets import AtTime, NewestMessages, parse_relative, timestamp

ABANDONED_AFTER_S = 24 * 3600
"""A subscription that holds messages back and was not here for longer is warned about."""


@dataclass(frozen=True, slots=True)
class QueueSubscriptionStatus:
    """A subscription of a queue."""

    name: str
    last: int
    """Everything up to this id is acknowledged."""
    behind: int
    """Ids given after that."""
    behind_s: int | None
    """Seconds since the first of them came, or a little less: the clock of the queue is right to
    the second; the age is None where it is not known.
    """
    holds_back: int
    """Messages that stay stored for this one, since another subscription has acked them, or since
    there is no other.
    """
    idle_s: int | None
    """Seconds since it came or acked last, by the server's clock; the time is None where it was not
    recorded.
    """
    reader: str
    """The holder of its lease; empty when no query reads with it."""

    @property
    def is_abandoned(self) -> bool:
        """Whether it seems abandoned while messages stay stored for it."""
        return not self.reader and self.holds_back > 0 and (self.idle_s or 0) >= ABANDONED_AFTER_S


def check_name(name: str) -> str:
    """The name of a subscription. Raises ConfigError."""
    check_text("the name of the subscription", name)
    try:
        return checked(name)
    except ValueError as error:
        raise ConfigError(
            reason=f"the name of the subscription is {name!r}; expected {error}"
        ) from None


def register(
    keys: QueueKeys,
    name: str,
    start: str | int = "earliest",
    is_dead: Callable[[str], bool] = lambda _: False,
    shared: Mapping[str, str | int] | None = None,
) -> Flow[int]:
    """Register a subscription, so that messages stay stored until it has acked them. The result is
    its last acked id; one it has already stays.

    ``start`` is ``earliest``, ``latest``, the last id that counts as read, a time (``-10m``, or ISO
    8601 with its offset), or ``-1000 messages``. Raises QueueBusy while a query without a
    subscription reads the queue, ConfigError for a bad name or start, TimeUnknown; ``is_dead`` says
    whether the holder of a lease is known to be gone. With ``shared``, settings, it is that of a
    shared group (groups/shared_group.py).
    """
    check_name(name)
    if start not in ("earliest", "latest"):
        start = yield from _last_id(keys, start)
    holder = ((yield command("GET", keys.lease(""))) or b"").decode()
    if holder and not is_dead(holder):
        remedy = (
            "That query would lose messages to others: stop it, and give it an option"
            " 'subscription' of its own"
        )
        raise QueueBusy(
            queue=keys.name, found="is read by a query without a subscription", remedy=remedy
        )
    [last] = yield from subscribe([keys], name, [start], shared)
    return last


def seek(
    keys: QueueKeys, name: str, where: str | int, is_dead: Callable[[str], bool] = lambda _: False
) -> Flow[int]:
    """Move a subscription or group without a holder: ``where`` as for :func:`register`. The result
    is the last id that counts as read now.

    Only what is stored can be read again. Raises QueueBusy while it is held, ConfigError where
    there is none or ``where`` is none, TimeUnknown.
    """
    check_name(name)
    [state] = yield from states([(keys, -1)])
    ends = {"earliest": state.floor, "latest": state.last_id}
    last = (
        ends[where]
        if isinstance(where, str) and where in ends
        else (yield from _last_id(keys, where))
    )
    shared = yield command("HEXISTS", keys.acks, f":shared:{name}")
    names = (keys.acks, keys.lease(name), *(keys.group(name) if shared else ()))
    dead = ""
    while True:
        found = (
            yield script(
                "group_seek",
                names,
                (name, max(last, state.floor), state.born, MIN_RECORD_TTL_S, dead),
            )
        ).decode()
        if found == "ok":
            return max(last, state.floor)
        if found == "missing":
            raise ConfigError(
                reason=(
                    f"queue {keys.name!r} has no group {name!r}; make it by reading with it, or"
                    " with busmq subscribe"
                )
            )
        if found == "busy" or dead or not is_dead(found):
            remedy = (
                "Stop its holders first"
                if found != "busy"
                else "Pause the group and wait until it is drained, or stop its holders"
            )
            raise QueueBusy(queue=keys.name, found=f"is read as group {name!r}", remedy=remedy)
        dead = found


def _last_id(keys: QueueKeys, start: str | int) -> Flow[int]:
    """The last id that counts as read."""
    [state] = yield from states([(keys, -1)])
    found = parse_relative(start) if isinstance(start, str) else start
    if isinstance(found, NewestMessages):
        return max(state.floor, state.last_id - found.count)
    if isinstance(found, AtTime) or found is None:
        with suppress(ValueError):
            return (yield from id_at(keys, (found or timestamp(str(start))).ms))
    elif type(found) is int and 0 <= found <= state.last_id:
        return found
    wanted = (
        "earliest, latest, -10m, -1000 messages, a time, or a last id that counts as read, up to"
        f" {state.last_id}"
    )
    raise ConfigError(reason=f"start is {start!r}; expected {wanted}")


def list_subscriptions(keys: QueueKeys) -> Flow[list[QueueSubscriptionStatus]]:
    """The subscriptions of a queue, by name."""
    yield from note_times_if_allowed([keys])
    [state] = yield from states([(keys, -1)])
    now, *items = yield script("subscriptions", (keys.acks,), ())
    fields = {name.decode(): value for name, value in zip(items[0::2], items[1::2], strict=True)}
    acked = {name: int(last) for name, last in sorted(fields.items()) if not name.startswith(":")}
    leases = (yield [command("GET", keys.lease(name)) for name in acked]) if acked else []
    waiting = yield from ages([(keys, max(last, state.floor) + 1) for last in acked.values()])
    found = []
    for (name, last), lease, age_ms in zip(acked.items(), leases, waiting, strict=True):
        since = int(fields.get(f":at:{name}", 0))
        idle_s = max(0, int(now) - since) if since and int(now) else None
        back = held_back(state, acked, name)
        behind = max(0, state.last_id - last)
        behind_s = 0 if not behind else None if age_ms < 0 else age_ms // 1000
        found.append(
            QueueSubscriptionStatus(
                name, last, behind, behind_s, back, idle_s, (lease or b"").decode()
            )
        )
    return found


def held_back(state: QueueState, acked: Mapping[str, int], name: str) -> int:
    """Return the number of messages that stay stored for a subscription, since another one has
    acknowledged them, or since there is no other.
    """
    reached = max((last for each, last in acked.items() if each != name), default=state.last_id)
    return max(0, min(reached, state.last_id) - max(acked[name], state.floor))


def unsubscribe(
    keys: QueueKeys, name: str, is_dead: Callable[[str], bool] = lambda _: False
) -> Flow[bool]:
    """Forget a subscription and drop what only it held back. The result says whether there was one.

    Raises QueueBusy while a query reads with it; ``is_dead`` says whether the holder of a lease is
    known to be gone.
    """
    names = (keys.acks, keys.lease(name), *keys.group(name), keys.owners)
    reply = yield script("unsubscribe", names, (name, ""))
    if isinstance(reply, bytes) and is_dead(reply.decode()):
        reply = yield script("unsubscribe", names, (name, reply))
    if isinstance(reply, bytes):
        remedy = "Stop that query first; one that died elsewhere is forgotten within 15 s"
        raise QueueBusy(
            queue=keys.name, found=f"is read by a query as subscription {name!r}", remedy=remedy
        )
    [others] = yield from subscriptions([keys])
    born = (yield command("HGET", keys.metadata, "born")) if others else None
    if born:
        slowest = min(others, key=lambda other: others[other])
        yield from ack_to([CumulativeAckRequest(keys, others[slowest], born.decode(), "")], slowest)
    return bool(reply)
