"""Publishing: the table of which queues the events of which keys go to, and the delivery of an event or a command to a queue.

Rule 1. The table is a hash of pattern and queue, at one server. Repeating a call changes nothing. With each change it has a new version, and who
        publishes asks for the version, and for the table only where that is another one.
Rule 2. A queue that does not exist is made when something is delivered to it, and lives as any other.
Rule 3. A queue to which a command was sent takes one group only, as long as it lives: the field ``command`` of its metadata says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from busmq_spark.core.command_generators import Flow, command, script
from busmq_spark.core.event_patterns import check_pattern, destinations
from busmq_spark.core.keys import EVENT_SUBSCRIPTIONS_KEY, QueueKeys
from busmq_spark.core.message import CHUNK_MESSAGES
from busmq_spark.core.queue import MIN_RECORD_TTL_S, attach, metadata, push
from busmq_spark.errors import ConfigError, QueueBusy, QueueFull, QueueMissing

VERSION_FIELD = ":version"
MAX_CACHED_KEYS = 10_000
"""Most keys whose queues are remembered."""


@dataclass(frozen=True, slots=True)
class EventPublishReceipt:
    """What became of an event or a command."""

    id: str
    """The id of the event or command."""
    destinations: tuple[str, ...]
    """The queues that have it, sorted. None: no queue is subscribed."""


def check_queue(name: object) -> str:
    """The name of a destination. Raises ConfigError."""
    try:
        if isinstance(name, str) and name and name.encode():
            return name
    except UnicodeEncodeError:
        pass
    raise ConfigError(reason=f"the queue is {name!r}; expected the name of a queue")


class EventRoutingTable:
    """The table as it was in one version."""

    def __init__(self, version: bytes | None, pairs: list[tuple[str, str]]) -> None:
        """``version``: None where a program has written it that gives it none. ``pairs``: patterns with a queue that is subscribed with them."""
        self.version, self.pairs = version, pairs
        self._known: dict[str, list[str]] = {}

    def queues_for(self, keys: Sequence[str]) -> list[str]:
        """The queues that an event with these keys goes to, sorted."""
        return sorted({queue for key in keys for queue in self._queues_for_key(key)})

    def _queues_for_key(self, key: str) -> list[str]:
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_CACHED_KEYS:
                self._known.clear()
            found = self._known[key] = destinations(self.pairs, [key])
        return found


def read_subscribers(known: EventRoutingTable | None = None) -> Flow[EventRoutingTable]:
    """The table as it is now: ``known`` itself where that still is it."""
    if known is not None and known.version is not None and (yield command("HGET", EVENT_SUBSCRIPTIONS_KEY, VERSION_FIELD)) == known.version:
        return known
    reply = yield command("HGETALL", EVENT_SUBSCRIPTIONS_KEY)
    fields = dict(zip(reply[0::2], reply[1::2], strict=True))
    pairs = [field.decode("utf-8", "replace").partition(" ") for field in fields]
    return EventRoutingTable(fields.get(VERSION_FIELD.encode()), sorted((pattern, queue) for pattern, _, queue in pairs if pattern and queue))


def read_table() -> Flow[list[tuple[str, str]]]:
    """Every pattern with a queue that is subscribed with it, sorted."""
    return (yield from read_subscribers()).pairs


def subscribe(patterns: Sequence[str], queue: str, version: str) -> Flow[int]:
    """Subscribe a queue to what these patterns take. How many of them are new to it. ``version`` was never used before, here and below."""
    return (yield from _change_subscriptions("add", _fields(patterns, queue), version))


def unsubscribe(patterns: Sequence[str], queue: str, version: str) -> Flow[int]:
    """End subscriptions of a queue. How many of them there were."""
    return (yield from _change_subscriptions("remove", _fields(patterns, queue), version))


def forget_queue(queue: str, version: str) -> Flow[int]:
    """End every subscription of a queue. How many there were."""
    check_queue(queue)
    patterns = [pattern for pattern, into in (yield from read_table()) if into == queue]
    return (yield from _change_subscriptions("remove", [f"{pattern} {queue}" for pattern in patterns], version))


def _change_subscriptions(change: str, fields: Sequence[str], version: str) -> Flow[int]:
    changed = 0
    for first in range(0, len(fields), CHUNK_MESSAGES):
        part = fields[first : first + CHUNK_MESSAGES]
        changed += yield script("subscribers", (EVENT_SUBSCRIPTIONS_KEY,), (change, f"{version}:{first}", *part))
    return changed


def deliver_event(keys: QueueKeys, value: bytes, born: str) -> Flow[int]:
    """Append an event to a queue, which is made, with the name ``born`` for its life, where there is none. The id of the message.

    Raises QueueFull.
    """
    try:
        id = yield from push(keys, value)
    except QueueMissing:
        yield from attach(keys, born, ttl_s=MIN_RECORD_TTL_S)
        id = yield from push(keys, value)
    return (yield from _check_stored(keys, id))


def send_command(keys: QueueKeys, value: bytes, born: str) -> Flow[int]:
    """The same with a command. Raises QueueBusy where the queue has several groups."""
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
        raise QueueBusy(queue=keys.name, found=f"has the groups {found}, and a command is for one", remedy=remedy)


def _check_stored(keys: QueueKeys, id: int | None) -> Flow[int]:
    if id is None:
        maxsize = (yield from metadata(keys)).get("maxsize", "")
        raise QueueFull(queue=keys.name, maxsize=maxsize, left=1, waited="")
    return id


def _fields(patterns: Sequence[str], queue: str) -> list[str]:
    if isinstance(patterns, str) or not patterns:
        raise ConfigError(reason=f"the patterns are {patterns!r}; expected a list of at least one, such as ['user.*']")
    check_queue(queue)
    return [f"{check_pattern(pattern)} {queue}" for pattern in patterns]
