"""Publishing: the table of which queues the events of which keys go to, and the delivery of an
event or a command to a queue.

Rule 1. The table is a hash of pattern and queue, at one server. Repeating a call changes nothing.
        With each change it has a new version. A publisher reads the version, and then the changes
        only.
Rule 2. A queue that does not exist is made when something is delivered to it, and lives as any
        other. A queue that only peers of a federation server have subscribed is not: its rows end
        with it.
Rule 3. A queue to which a command was sent takes one group only, as long as it lives: the field
        ``command`` of its metadata says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from busmq_spark.arguments import check_items
from busmq_spark.errors import (
    BusError,
    ConfigError,
    QueueBusy,
    QueueFull,
    QueueIsMirror,
    QueueMissing,
)
from busmq_spark.queue.command_generators import Flow, command, script
from busmq_spark.queue.keys import EVENT_SUBSCRIPTIONS_KEY, QueueKeys
from busmq_spark.queue.message import CHUNK_MESSAGES
from busmq_spark.queue.queue import MIN_RECORD_TTL_S, attach, metadata, push
from busmq_spark.routing.event_patterns import (
    LOCAL_OWNER,
    EventIndex,
    check_pattern,
    merge_owners,
    owners_of,
)

LOCAL_ROW = "1"
"""The value of a row that a program beside a federation server has made."""
VERSION_FIELD = ":version"
MAX_CACHED_KEYS = 10_000
"""Most keys whose queues are remembered."""


@dataclass(frozen=True, slots=True)
class EventPublishReceipt:
    """The result of an event or a command."""

    id: str
    """The id of the event or command."""
    destinations: tuple[str, ...]
    """The queues that have it, sorted. The destinations are empty when no queue is subscribed."""
    missed: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The queues that have it not, and why: full or gone, and subscribed by peers of a federation
    server only.
    """


def check_queue(name: object) -> str:
    """The name of a destination. Raises ConfigError."""
    try:
        if isinstance(name, str) and name and name.encode():
            return name
    except UnicodeEncodeError:
        pass
    raise ConfigError(reason=f"the queue is {name!r}; expected the name of a queue")


class EventRoutingTable:
    """The table as it was in one version; :meth:`change_row` brings it to the next."""

    def __init__(self, version: bytes | None, pairs: Iterable[tuple[str, str]]) -> None:
        """``version``: None where a program has written it that gives it none. ``pairs``: patterns
        with a queue that is subscribed with them by a program beside the server.
        """
        self.version = version
        self._index = EventIndex()
        self._values: dict[tuple[str, str], str] = {}
        self._known: dict[str, dict[str, frozenset[str]]] = {}
        for pattern, queue in pairs:
            self.change_row(pattern, queue, LOCAL_ROW)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every pattern with a queue that is subscribed with it, sorted."""
        return sorted(self._values)

    @property
    def owners_of_rows(self) -> dict[tuple[str, str], frozenset[str]]:
        """The owners of each pattern with a queue."""
        return {row: owners_of(value) for row, value in self._values.items()}

    def change_row(self, pattern: str, queue: str, value: str) -> None:
        """A row has this value now; ``""``: it is gone."""
        if self._known:
            self._known = {}
        if value:
            self._values[pattern, queue] = value
            self._index.put(pattern, queue, value)
        else:
            self._values.pop((pattern, queue), None)
            self._index.remove(pattern, queue)

    def owners_by_queue(self, keys: Sequence[str]) -> dict[str, frozenset[str]]:
        """The queues that an event with these keys goes to, each with who has subscribed it,
        sorted.
        """
        found: dict[str, frozenset[str]] = {}
        merge_owners(found, map(self._owners_for_key, keys))
        return dict(sorted(found.items()))

    def queues_for(self, keys: Sequence[str]) -> list[str]:
        """The queues that an event with these keys goes to, sorted."""
        return [*self.owners_by_queue(keys)]

    def is_of_peers(self, queue: str) -> bool:
        """Whether the queue has rows, and peers alone have made them."""
        values = [value for (_, into), value in self._values.items() if into == queue]
        return bool(values) and not any(LOCAL_OWNER in owners_of(value) for value in values)

    def rows_of_peers(self, queues: Collection[str]) -> list[str]:
        """Fields and values of the rows of these queues that peers alone have made."""
        rows = [(row, value) for row, value in self._values.items() if row[1] in queues]
        return [
            text
            for (pattern, queue), value in rows
            if LOCAL_OWNER not in owners_of(value)
            for text in (f"{pattern} {queue}", value)
        ]

    def _owners_for_key(self, key: str) -> dict[str, frozenset[str]]:
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_CACHED_KEYS:
                self._known.clear()
            found = self._known[key] = self._index.find(key)
        return found


def read_subscribers(known: EventRoutingTable | None = None) -> Flow[EventRoutingTable]:
    """The table as it is now: ``known`` itself, brought up to date, where its changes since are
    known.
    """
    if known is not None and known.version is not None:
        if (yield command("HGET", EVENT_SUBSCRIPTIONS_KEY, VERSION_FIELD)) == known.version:
            return known
        if (yield from _bring_up_to_date(known)):
            return known
    reply = yield command("HGETALL", EVENT_SUBSCRIPTIONS_KEY)
    fields = dict(zip(reply[0::2], reply[1::2], strict=True))
    found = EventRoutingTable(fields.get(VERSION_FIELD.encode()), ())
    for name, value in fields.items():
        _change_field(found, name.decode("utf-8", "replace"), value.decode("utf-8", "replace"))
    return found


def _bring_up_to_date(known: EventRoutingTable) -> Flow[bool]:
    """Whether the changes since are known."""
    assert known.version is not None
    since = yield script("subscribers_since", (EVENT_SUBSCRIPTIONS_KEY,), (known.version,))
    if since is None:
        return False
    try:
        changes = [json.loads(change) for change in since]
    except ValueError:  # a name that is no UTF-8
        return False
    for _, version, name, value in changes:
        _change_field(known, name, value)
        known.version = version.encode()
    return True


def _change_field(table: EventRoutingTable, name: str, value: str) -> None:
    """Fields without a space are no rows."""
    pattern, _, queue = name.partition(" ")
    if pattern and queue:
        table.change_row(pattern, queue, value)


def read_table() -> Flow[list[tuple[str, str]]]:
    """Every pattern with a queue that is subscribed with it, sorted."""
    return (yield from read_subscribers()).pairs


def subscribe(patterns: Sequence[str], queue: str, version: str) -> Flow[int]:
    """Subscribe a queue to what these patterns take. Return the number of new patterns. ``version``
    was never used before, here and below.
    """
    return (yield from _change_subscriptions("add", _fields(patterns, queue), version))


def unsubscribe(patterns: Sequence[str], queue: str, version: str) -> Flow[int]:
    """End subscriptions of a queue. Return the number of removed patterns."""
    return (yield from _change_subscriptions("remove", _fields(patterns, queue), version))


def subscribe_as_peer(
    patterns: Sequence[str], queue: str, version: str, owner: str, most: int
) -> Flow[bool]:
    """Subscribe for a peer of a federation server: the rows are its own.

    Whether they are there; not where its secret would have more than ``most`` rows.
    """
    fields = list(dict.fromkeys(_fields(patterns, queue)))
    return (
        len(fields) <= most
        and (yield from _change_subscriptions("add", fields, version, owner, most)) >= 0
    )


def unsubscribe_as_peer(patterns: Sequence[str], queue: str, version: str, owner: str) -> Flow[int]:
    """End the peer's own subscriptions of a queue. Return the number of removed patterns."""
    return (yield from _change_subscriptions("remove", _fields(patterns, queue), version, owner))


def forget_queue(queue: str, version: str) -> Flow[int]:
    """End every subscription of a queue. How many there were."""
    check_queue(queue)
    patterns = [pattern for pattern, into in (yield from read_table()) if into == queue]
    return (
        yield from _change_subscriptions(
            "remove", [f"{pattern} {queue}" for pattern in patterns], version
        )
    )


def end_rows_of_peers(table: EventRoutingTable, queues: Collection[str], version: str) -> Flow[int]:
    """End what peers have subscribed queues to that are no more, unless they have done so again."""
    return (yield from _change_subscriptions("gone", table.rows_of_peers(queues), version))


def end_revoked_rows(may_keep: Callable[[str, str, str], bool], version: str) -> Flow[int]:
    """End each row that its owner may not keep: ``may_keep(owner, pattern, queue)``. How many there
    were.
    """
    revoked: dict[str, list[str]] = {}
    for (pattern, queue), owners in (yield from read_subscribers()).owners_of_rows.items():
        for owner in owners - {LOCAL_OWNER}:
            if not may_keep(owner, pattern, queue):
                revoked.setdefault(owner, []).append(f"{pattern} {queue}")
    ended = 0
    for owner, fields in revoked.items():
        ended += yield from _change_subscriptions("remove", fields, f"{version}:{owner}", owner)
    return ended


def _change_subscriptions(
    change: str, fields: Sequence[str], version: str, owner: str = LOCAL_OWNER, most: int = 0
) -> Flow[int]:
    changed = 0
    for first in range(0, len(fields), CHUNK_MESSAGES):
        part = fields[first : first + CHUNK_MESSAGES]
        changed += yield script(
            "subscribers",
            (EVENT_SUBSCRIPTIONS_KEY,),
            (change, f"{version}:{first}", owner, most, *part),
        )
    return changed


def deliver_event(keys: QueueKeys, value: bytes, born: str) -> Flow[int]:
    """Append an event to a queue, which is made, with the name ``born`` for its life, where there
    is none. The id of the message.

    Raises QueueFull.
    """
    try:
        id = yield from push(keys, value)
    except QueueMissing:
        yield from attach(keys, born, ttl_s=MIN_RECORD_TTL_S)
        id = yield from push(keys, value)
    return (yield from _check_stored(keys, id))


def deliver_to_peer(keys: QueueKeys, value: bytes, _: str) -> Flow[int]:
    """Append an event to a queue that peers alone have subscribed. Raises QueueMissing,
    QueueFull.
    """
    return (yield from _check_stored(keys, (yield from push(keys, value))))


def is_of_peers(owners: Collection[str]) -> bool:
    """Whether peers of a federation server alone have subscribed a queue to an event."""
    return LOCAL_OWNER not in owners


def is_fault_of_queue(error: BusError) -> bool:
    """Whether the queue itself takes no event: no fault of the publisher, nor of Redis."""
    return isinstance(error, QueueFull | QueueMissing | QueueIsMirror)


def send_command(keys: QueueKeys, value: bytes, born: str) -> Flow[int]:
    """Push a command in the same way. Raises QueueBusy where the queue has several groups."""
    try:
        yield from make_command_queue(keys)
    except QueueMissing:
        yield from attach(keys, born, ttl_s=MIN_RECORD_TTL_S)
        yield from make_command_queue(keys)
    return (yield from _check_stored(keys, (yield from push(keys, value))))


def make_command_queue(keys: QueueKeys) -> Flow[None]:
    """Let a queue take one group only. Raises QueueMissing, and QueueBusy where it has several."""
    groups = yield script("command", (keys.metadata, keys.acks), ())
    if groups is None:
        raise QueueMissing(queue=keys.name)
    if groups:
        found = ", ".join(repr(group.decode("utf-8", "replace")) for group in groups)
        remedy = "Drop all of them but one (busmq unsubscribe), or publish an event instead"
        raise QueueBusy(
            queue=keys.name,
            found=f"has the groups {found}, and a command is for one",
            remedy=remedy,
        )


def _check_stored(keys: QueueKeys, id: int | None) -> Flow[int]:
    if id is None:
        maxsize = (yield from metadata(keys)).get("maxsize", "")
        raise QueueFull(queue=keys.name, maxsize=maxsize, left=1, waited="")
    return id


def _fields(patterns: Sequence[str], queue: str) -> list[str]:
    if isinstance(patterns, str) or not patterns:
        raise ConfigError(
            reason=(
                f"the patterns are {patterns!r}; expected a list of at least one, such as"
                " ['user.*']"
            )
        )
    check_queue(queue)
    return [f"{check_pattern(each)} {queue}" for each in check_items("patterns", patterns)]
