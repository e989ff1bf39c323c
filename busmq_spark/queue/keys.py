"""Names to Redis keys. The only place that spells a key.

The first five are those of npm busmq 3.1.0 (protocol chapter 1.1); the rest are ours, live beside
them under the same hash tag, and npm clients neither read nor delete them.

Queues of several sources under one kind of name. Planning, attaching and tasks see names only;
here they are made and taken apart.

A queue of Redis itself has its own name, so that a query without links has no trace of this. The
name of a queue of a link begins with the link's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from busmq_spark.arguments import check_text, is_utf8
from busmq_spark.queue.caching import cached_attribute

QUEUE_PREFIX = "bus:queue:"
METADATA_SUFFIX, LETTERS_SUFFIX, STAGE_INFIX = ":metadata", ":letters", ":stage:"
JOB_PREFIX = "bus:job:"
LOOKS_LIKE_KEY_SUFFIX = re.compile(
    r":(?:metadata|messages|msgid|toack|acks|sinks|senders|owners|readers|letters|clock|bytes|due|tries|runs)$|:(?:lease|hand|stages?|group):"
)
"""Finds names that would make, after a key's prefix, another key of a queue."""
_FORBIDDEN_IN_NAME = re.compile(r"^:|[\x00-\x1f\x7f]")
REPLY_QUEUE_SUFFIX = re.compile(r":replyTo:[0-9a-f]{16}\Z")
"""The suffix that :func:`reply_queue` puts after the name of a service."""


@dataclass(frozen=True)
class QueueKeys:
    """Every key of one queue. ``cluster`` puts the base in braces, so that all of them share a
    slot.
    """

    name: str
    cluster: bool = False

    @cached_attribute
    def base(self) -> str:
        """``bus:queue:<name>``, in braces for a cluster."""
        return f"{{{QUEUE_PREFIX}{self.name}}}" if self.cluster else f"{QUEUE_PREFIX}{self.name}"

    @cached_attribute
    def metadata(self) -> str:
        """Hash; its existence is the existence of the queue."""
        return f"{self.base}{METADATA_SUFFIX}"

    @cached_attribute
    def messages(self) -> str:
        """List of id, value, id, value …; the head is the oldest."""
        return f"{self.base}:messages"

    @cached_attribute
    def msgid(self) -> str:
        """Counter: the id given last."""
        return f"{self.base}:msgid"

    @cached_attribute
    def toack(self) -> str:
        """Pair list of messages that a reliable consumer took and has not acked."""
        return f"{self.base}:toack"

    @cached_attribute
    def available(self) -> str:
        """Pub/sub channel: a push happened."""
        return f"{self.base}:available"

    @cached_attribute
    def acks(self) -> str:
        """Ours. Hash: subscription → last acked id; ``:born`` → their incarnation,
        ``:at:<subscription>`` → when it acked or registered last, ``:shared:<subscription>`` → 1
        for a shared group, ``:mirrored:<subscription>`` → 1 where a mirror has it from its origin.
        """
        return f"{self.base}:acks"

    @cached_attribute
    def sinks(self) -> str:
        """Ours. Hash with fields of two kinds.

        ``<sink id>``: its progress in this queue, ``<batch>:<nth>:<moved>`` or ``<batch>:done``,
        and after it ``;<epoch>;<digest>`` of the record where they are known (commit.lua).
        ``<query id>;<born of an input queue>``: in real-time mode, the last message of that queue
        which the query has appended here (push_once.lua).
        """
        return f"{self.base}:sinks"

    @cached_attribute
    def senders(self) -> str:
        """Ours. Hash: sender → the number of its last message and when that came,
        ``<sequence>:<s>`` (push_from.lua). Outlives the queue.
        """
        return f"{self.base}:senders"

    @cached_attribute
    def clock(self) -> str:
        """Ours. List of time, id, time, id …: at that time, in milliseconds since 1970, the newest
        id was that one (include/clock.lua).
        """
        return f"{self.base}:clock"

    @cached_attribute
    def bytes(self) -> str:
        """Ours, of a queue that keeps so many bytes of what is acknowledged. List of total, id,
        total, id …: all up to that id, so many bytes.
        """
        return f"{self.base}:bytes"

    @cached_attribute
    def owners(self) -> str:
        """Ours. Hash: subscription → whose it is, among those that federation servers let in."""
        return f"{self.base}:owners"

    @cached_attribute
    def readers(self) -> str:
        """Ours. Hash: reader → its record and the last looks at its position
        (include/announce.lua). It ends a day after the last renewal.
        """
        return f"{self.base}:readers"

    @cached_attribute
    def letters(self) -> str:
        """Ours, of a dead-letter queue. Sorted set: the ids of the letters that groups wrote
        (push_letters.lua).
        """
        return f"{self.base}{LETTERS_SUFFIX}"

    @cached_attribute
    def peer_keys(self) -> tuple[str, str, str, str]:
        """The four keys every peer touches and deletes, in the order of the protocol."""
        return (self.metadata, self.messages, self.msgid, self.toack)

    @cached_attribute
    def appending(self) -> tuple[str, ...]:
        """Return the shared keys and, where the queue has a clock, the keys that a push needs to
        note times and to end retention.
        """
        return (
            (*self.peer_keys, self.clock, self.acks, self.bytes)
            if self.has_clock
            else self.peer_keys
        )

    @cached_attribute
    def has_clock(self) -> bool:
        """Whether times are noted: not of the queues of channels and services, which live for
        moments.
        """
        return not self.name.startswith(("channel:", "service:"))

    @cached_attribute
    def all(self) -> tuple[str, ...]:
        """The four shared keys, then ``acks``, ``sinks``, ``clock`` and ``bytes``."""
        return (*self.peer_keys, self.acks, self.sinks, self.clock, self.bytes)

    @cached_attribute
    def retention_keys(self) -> tuple[str, ...]:
        """Return the keys that a script needs to delete messages beyond the retention limits:
        metadata, messages, msgid, acks, clock, bytes.
        """
        return (self.metadata, self.messages, self.msgid, self.acks, self.clock, self.bytes)

    def lease(self, subscription: str) -> str:
        """Ours. String with a ttl: which query reads this queue, or this subscription of it."""
        return f"{self.base}:lease:{subscription}"

    def group(self, name: str) -> tuple[str, str, str, str]:
        """Ours, of a shared group (group_lease.lua).

        A hash: its settings and the newest id it has leased. A sorted set, the first id of a lease
        → ms: when it ends or, below 0, when its messages may be leased again. A hash, the same id →
        how often they were leased, by which token, when first, and how many they are. A sorted set,
        id → id, of the leases of more than one message.
        """
        base = f"{self.base}:group:{name}"
        return (base, f"{base}:due", f"{base}:tries", f"{base}:runs")

    def in_flight(self, consumer: str) -> str:
        """Ours. Pair list: what one unreliable consumer took last; ``consumer`` must be unique for
        ever.
        """
        return f"{self.base}:hand:{consumer}"

    def stage(self, attempt: str) -> str:
        """Ours. List of staged values of one task attempt; ``attempt`` must be unique for ever."""
        return f"{self.base}{STAGE_INFIX}{attempt}"

    def stages(self, sink: str) -> str:
        """Ours. Hash: attempt → epoch of the run that staged it, for the staged lists of one
        sink.
        """
        return f"{self.base}:stages:{sink}"


TOPIC_PREFIX = "bus:topic:"


@dataclass(frozen=True)
class TopicKeys:
    """The keys of one topic, beside its partition queues (groups/topic.py). Ours. Each lives on one
    server, by the hash of ``base``.
    """

    name: str
    cluster: bool = False

    @cached_attribute
    def base(self) -> str:
        """Hash ``partitions``, ``born``: ``bus:topic:<name>``, in braces for a cluster."""
        return f"{{{TOPIC_PREFIX}{self.name}}}" if self.cluster else f"{TOPIC_PREFIX}{self.name}"

    @cached_attribute
    def changed_channel(self) -> str:
        """Pub/sub channel: the topic has grown, or a group has other members; the payload is the
        group, empty for all.
        """
        return f"{self.base}:changed"

    def members(self, group: str) -> str:
        """Sorted set: member of the group → until when it counts as one, in milliseconds since 1970
        of the server's clock.
        """
        return f"{self.base}:members:{group}"


def check_name(of: str, name: object) -> str:
    """Return the name of a queue, channel, service, pubsub or persisted object: any text but an
    empty one.

    Nothing of it is taken off: blanks and control characters belong to it, as with npm.
    """
    return check_text(f"the name of the {of}", name)


def is_topic(name: str) -> bool:
    """Whether a topic may have this name: its keys, and those of its partition queues, can be no
    others then.
    """
    return (
        bool(name)
        and is_utf8(name)
        and not (
            ":members:" in name
            or name.startswith(("channel:", "service:"))
            or name != name.strip()
            or _FORBIDDEN_IN_NAME.search(name)
        )
    )


def topic_name(key: str, *, cluster: bool = False) -> str | None:
    """The topic whose hash this key is, or None when it is another kind of key."""
    head, tail = (f"{{{TOPIC_PREFIX}", "}") if cluster else (TOPIC_PREFIX, "")
    name = key[len(head) : len(key) - len(tail)]
    return name if key == f"{head}{name}{tail}" and is_topic(name) else None


def topic_pattern(*, cluster: bool = False) -> str:
    """SCAN pattern that matches the hash of every topic, and some other keys of topics."""
    return f"{{{TOPIC_PREFIX}*}}" if cluster else f"{TOPIC_PREFIX}*"


class JobKeys(NamedTuple):
    """Every key of one job, all ours; those of a cluster share a slot. They are on the server of
    the job's queue.
    """

    id: str
    cluster: bool = False

    @property
    def base(self) -> str:
        """``bus:job:<id>``, in braces for a cluster."""
        return f"{{{JOB_PREFIX}{self.id}}}" if self.cluster else f"{JOB_PREFIX}{self.id}"

    @property
    def outcomes(self) -> str:
        """Hash: group → its outcome; ``:of:<group>`` → who may write it (job_outcome.lua)."""
        return f"{self.base}:done"

    def field(self, name: str) -> str:
        """String with a ttl: one field."""
        return f"{self.base}:{name}"

    def spare_field(self, name: str, token: str) -> str:
        """String with a ttl: a field that a call has forgotten whose reply may be lost; ``token``
        names the call.
        """
        return f"{self.base}::{token}:{name}"


def jobs_channel(queue: str) -> str:
    """The Redis channel of the outcomes of the jobs of a queue, in every layout; of a pattern of
    queues, its pattern.
    """
    return f"bus:jobs:{queue}"


def client_channel(client: str) -> str:
    """The Redis channel of the outcomes of the jobs that one client has sent."""
    return f"bus:jobs-of:{client}"


def queue_name(metadata_key: str, *, cluster: bool = False) -> str | None:
    """The queue whose metadata key this is, or None when it is another kind of key."""
    return queue_of_key(metadata_key, METADATA_SUFFIX, cluster=cluster)


def queue_of_key(key: str, suffix: str, *, cluster: bool = False) -> str | None:
    """Return the queue whose key with this suffix this is, or None when it is another key."""
    head, tail = (f"{{{QUEUE_PREFIX}", f"}}{suffix}") if cluster else (QUEUE_PREFIX, suffix)
    if not (key.startswith(head) and key.endswith(tail)) or len(key) <= len(head) + len(tail):
        return None
    return key[len(head) : -len(tail)]


def metadata_pattern(*, cluster: bool = False) -> str:
    """SCAN pattern that matches the metadata key of every queue."""
    return (
        f"{{{QUEUE_PREFIX}*}}{METADATA_SUFFIX}" if cluster else f"{QUEUE_PREFIX}*{METADATA_SUFFIX}"
    )


def channel_queue(role: str, name: str) -> str:
    """The queue that the client with this role in a channel reads (protocol chapter 3)."""
    return f"channel:{role}:{name}"


def pubsub_channel(name: str) -> str:
    """The Redis channel of a pubsub object, in every layout (protocol 4.1)."""
    return f"bus:pubsub:{name}"


ANNOUNCEMENT_CHANNEL = "bus:notifications"
"""The pubsub on which discoverable queues are announced (protocol 1.11)."""


EVENT_SUBSCRIPTIONS_KEY = "bus:subscriptions"
"""Ours. Hash: pattern, a space, queue → 1; which queues the events of which keys go to, in every
layout. ``:version``: another one with each change. Lives for ever.
"""


def announced_name(key: str) -> str | None:
    """The queue whose metadata key, of whichever layout, was announced; return None for any other
    key.
    """
    return queue_name(key) or queue_name(key, cluster=True)


def persisted_key(name: str) -> str:
    """Hash of a persisted object, in every layout (protocol 4.2)."""
    return f"bus:persisted:{name}"


def service_queue(service: str) -> str:
    """Name of the queue on which the providers of a service find requests (protocol 4.3)."""
    return f"service:{service}"


def reply_queue(service: str, requester: str) -> str:
    """Name of the queue on which one requester finds its replies; ``requester`` is 16 lower-case
    hex digits, unique to it.
    """
    return f"service:{service}:replyTo:{requester}"


def is_reply_queue(service: str, queue: str) -> bool:
    """Return whether ``queue`` can be where a requester of ``service`` finds its replies, and no
    queue of another service.
    """
    head = service_queue(service)
    return queue.startswith(head) and REPLY_QUEUE_SUFFIX.fullmatch(queue, len(head)) is not None


def sink_record(sink: str) -> str:
    """Ours. Hash ``batch``, ``manifest``: which staged lists make up the batch that a sink is
    committing; ``epoch``, ``runs``: who may record one.
    """
    return f"bus:sink:{sink}"


def sink_queues(sink: str) -> str:
    """Ours. Hash: queue → the last run of the sink that staged rows for it."""
    return f"bus:sink-queues:{sink}"


BUS_KEYS_PATTERNS = {False: "bus:*", True: "*bus:*"}
"""SCAN pattern of all keys of a bus, without and with a cluster."""
MIRROR_REPORTS_PATTERN = "bus:mirror:*"
"""SCAN pattern of :func:`mirror_report`."""


def mirror_report(name: str) -> str:
    """Ours. String with a ttl, JSON: the state of a process that mirrors queues of another data
    centre (mirror/settings.py).
    """
    return f"bus:mirror:{name}"


def federated_prefix(owner: str) -> str:
    """Return the prefix of names in Redis that a federation server makes for a peer: sinks and
    tokens of leases.
    """
    return f"federated:{owner}:"


def sink_of(owner: str, sink: str) -> str:
    """Return the name in Redis of a peer's sink: equal names of two peers are two sinks, and
    neither is one beside the server.
    """
    return f"{federated_prefix(owner)}{sink}"


def is_subscription(name: str) -> bool:
    """Whether a key made with this name can be no other key, of this queue or of one whose name
    begins with this one's.
    """
    return (
        is_utf8(name)
        and not LOOKS_LIKE_KEY_SUFFIX.search(f":{name}")
        and not _FORBIDDEN_IN_NAME.search(name)
    )


def server_index(key: str, servers: int) -> int:
    """Which of ``servers`` owns ``key`` when none has it: sum of UTF-16 code units modulo their
    number (protocol chapter 2).
    """
    units = key.encode("utf-16-le", "surrogatepass")
    return (sum(units[0::2]) + 256 * sum(units[1::2])) % servers


_SOURCE_SEPARATOR = "\ufdd0"
"""A code point that Unicode keeps for uses like this and out of text. Links never have it in their
names, so the first one is ours.
"""


def qualified_name(source: str, queue: str) -> str:
    """The name of a queue of a source; ``source`` is a link's name, or '' for Redis itself."""
    return f"{source}{_SOURCE_SEPARATOR}{queue}" if source else queue


def split_name(name: str) -> tuple[str, str]:
    """Source and queue of a name that ``qualified_name`` made."""
    if _SOURCE_SEPARATOR not in name:  # nearly every name, and planning asks for each of thousands
        return "", name
    source, between, queue = name.partition(_SOURCE_SEPARATOR)
    return (source, queue) if source and between else ("", name)


def display_name(name: str) -> str:
    """For people."""
    source, queue = split_name(name)
    return f"{source}/{queue}" if source else queue


def by_source(names: Iterable[str]) -> dict[str, list[str]]:
    """The queues of each source, in the order given."""
    found: dict[str, list[str]] = {}
    for name in names:
        source, queue = split_name(name)
        found.setdefault(source, []).append(queue)
    return found
