"""Topics: P partition queues ``name/0`` … ``name/P-1`` under one name. A key chooses the partition;
the members of a group divide the partitions.

Rule 1. A partition is an ordinary queue, and order, acks, leases and exactly-once are those of that
        queue.
Rule 2. A topic may grow, and never has fewer partitions than before. A larger number gives keys
        other partitions.
Rule 3. Membership of a group is advisory. Each member computes the same ranges from it; the lease
        of the ordered group of a partition queue decides its owner (reading/reader_operations.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload
from zlib import crc32

from busmq_spark.errors import ConfigError, QueueDamaged, TopicMissing, TopicShrinks
from busmq_spark.errors.redis import ReadOnly, Unauthorized, WritesPaused
from busmq_spark.queue.command_generators import Flow, RedisCall, command, group_by, script
from busmq_spark.queue.keys import (
    LOOKS_LIKE_KEY_SUFFIX,
    QueueKeys,
    TopicKeys,
    is_subscription,
    is_topic,
)
from busmq_spark.reading.reader_subscriptions import check_name
from busmq_spark.reading.readers import ReaderStatus

MAX_PARTITIONS = 1000
TOPIC_RECORD_TTL_S = 90 * 24 * 3600
"""Seconds for which the record of an unused topic is kept: longer than its queues by default."""
MEMBER_TTL_MS = 10_000
"""Life of a member's entry: shorter than a partition's lease, so that a killed member is gone from
the list before its lease ends.
"""
MEMBERS_KEY_TTL_S = 3600
_PARTITION = re.compile(r"(.+)/(0|[1-9][0-9]{0,3})", re.DOTALL)


class TopicState(NamedTuple):
    """A topic as Redis has it."""

    partitions: int
    born: str
    """Names this life of the topic."""


class TopicMessageId(NamedTuple):
    """The place of a message of a topic."""

    partition: int
    id: int
    """In the partition queue."""


class PushedTopicMessageIds(Sequence[TopicMessageId]):
    """The places of many messages, in the order in which they were given. Made when it is first
    looked at: most producers do not.
    """

    def __init__(self, chosen: Sequence[int], ids: Mapping[int, Iterable[int]]) -> None:
        """The partition of each, and the ids in each partition in their order."""
        self._chosen, self._ids = chosen, ids
        self._made: list[TopicMessageId] | None = None

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, index: int) -> TopicMessageId: ...
    @overload
    def __getitem__(self, index: slice) -> list[TopicMessageId]: ...
    def __getitem__(self, index: int | slice) -> TopicMessageId | list[TopicMessageId]:
        return self._place_all()[index]

    def __iter__(self) -> Iterator[TopicMessageId]:
        return iter(self._place_all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._place_all() == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return repr(self._place_all())

    def _place_all(self) -> list[TopicMessageId]:
        if self._made is None:
            ids = {partition: iter(its) for partition, its in self._ids.items()}
            self._made = [
                TopicMessageId(partition, next(ids[partition])) for partition in self._chosen
            ]
        return self._made


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group of a topic."""

    name: str
    behind: int
    """Messages that it has not acknowledged, over all partitions."""
    behind_s: int | None
    """Seconds since the oldest of them came, or a little less; the age is None where it is not
    known of a partition.
    """
    partitions: int
    """The number of partitions that know the group."""
    read: int
    """The number of partitions that are read now."""


class GroupMembershipSnapshot(NamedTuple):
    """The present members of a group."""

    topic: TopicState
    now_ms: int
    members: dict[str, int]
    """Member → until when it counts as one, in milliseconds since 1970 of the server's clock."""


def partition_of(key: bytes | str, partitions: int) -> int:
    """The partition of a key: CRC-32 (that of zlib) of its UTF-8 bytes, modulo the number of
    partitions.
    """
    return crc32(key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key) % partitions


def partitions_of(keys: Sequence[bytes | str | None], partitions: int, turn: int) -> list[int]:
    """The partition of each key; ``turn`` is that of what has none. Raises TypeError for a key that
    is neither text nor bytes.
    """
    try:  # keys of one kind: no call in Python for each
        encoded = keys if keys and isinstance(keys[0], bytes) else map(str.encode, keys)  # type: ignore[arg-type]
        return [number % partitions for number in key_hashes(encoded)]  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        return [turn if key is None else partition_of(key, partitions) for key in keys]


def key_hashes(keys: Iterable[bytes]) -> Iterator[int]:
    """The number of each key; modulo the number of partitions it is :func:`partition_of`."""
    return map(crc32, keys)


def partition_queue(topic: str, partition: int) -> str:
    """The name of a partition queue, from partition 0 on."""
    return f"{topic}/{partition}"


def partition_queues(topic: str, partitions: int) -> list[str]:
    """The names of all partition queues."""
    return [partition_queue(topic, i) for i in range(partitions)]


def topic_partition(queue: str) -> tuple[str, int] | None:
    """The topic and partition that the name of a partition queue says, None for a name that is
    none.
    """
    found = _PARTITION.fullmatch(queue)
    return (found[1], int(found[2])) if found and int(found[2]) < MAX_PARTITIONS else None


def partition_home(partition: int, servers: int) -> int:
    """The index of the server on which a partition queue is created, of several independent ones;
    one that exists elsewhere is used where it is.
    """
    return partition % servers


def partition_ranges(members: Sequence[str], partitions: int) -> dict[str, range]:
    """The partitions of each member: contiguous, in the order of the members' names, and sizes
    differ by one at most.

    With more members than partitions the last ones have none.
    """
    names = sorted(set(members))
    each, more = divmod(partitions, max(1, len(names)))
    ends = [each * n + min(n, more) for n in range(len(names) + 1)]
    return {
        name: range(first, end) for name, first, end in zip(names, ends, ends[1:], strict=False)
    }


def lags_by_group(readers: Sequence[ReaderStatus]) -> list[GroupLag]:
    """The groups of a topic, by name, from the readers of its partition queues."""
    groups = (each for each in readers if each.reader and each.kind != "mirror")
    found = group_by(groups, lambda each: each.reader)
    return [_group_lag(name, its) for name, its in sorted(found.items())]


def _group_lag(name: str, its: Sequence[ReaderStatus]) -> GroupLag:
    ages = [each.behind_s for each in its]
    known = [age for age in ages if age is not None]
    return GroupLag(
        name,
        sum(each.behind for each in its),
        max(known) if len(known) == len(ages) else None,
        len(its),
        sum(bool(each.holder) for each in its),
    )


def check_topic(name: object) -> str:
    """The name of a topic. Raises ConfigError."""
    if (
        not isinstance(name, str)
        or not is_topic(name)
        or LOOKS_LIKE_KEY_SUFFIX.search(partition_queue(name, 0))
    ):
        wanted = (
            "a text without spaces around it or control characters, that is the beginning of no key"
            " of another queue or topic"
        )
        raise ConfigError(reason=f"the name of the topic is {name!r}; expected {wanted}")
    return name


def check_partitions(partitions: object) -> int:
    """A number of partitions. Raises ConfigError."""
    if type(partitions) is not int or not 1 <= partitions <= MAX_PARTITIONS:
        raise ConfigError(
            reason=(
                f"partitions is {partitions!r}; expected a whole number from 1 to {MAX_PARTITIONS}"
            )
        )
    return partitions


def check_partition(partition: object, topic: str, partitions: int) -> int:
    """A partition of a topic that has so many. Raises ConfigError."""
    if type(partition) is not int or not 0 <= partition < partitions:
        raise ConfigError(
            reason=(
                f"partition is {partition!r}; topic {topic!r} has the partitions 0 to"
                f" {partitions - 1}"
            )
        )
    return partition


def check_group(name: str) -> str:
    """The name of a group of a topic. Raises ConfigError."""
    if not is_subscription(check_name(name)):
        raise ConfigError(
            reason=(
                f"the name of the group is {name!r}; expected one that is no key of a queue, and"
                " without control characters"
            )
        )
    return name


def open_topic(
    keys: TopicKeys, partitions: int | None, born: str, *, optional: bool = False
) -> Flow[TopicState]:
    """Create the topic, or adopt the one that exists, with as many partitions as it has. ``born``
    is a fresh random name, kept by a new one.

    ``optional``: the caller goes on without it where Redis pauses writes.
    Raises TopicMissing when there is none and ``partitions`` is None, ConfigError.
    """
    check_topic(keys.name)
    found = _topic(
        keys,
        (
            yield _topic_call(
                keys,
                0 if partitions is None else check_partitions(partitions),
                born,
                optional=optional,
            )
        ),
    )
    if found is None:
        raise TopicMissing(topic=keys.name)
    return found


def open_or_read_topic(
    keys: TopicKeys, partitions: int | None, born: str
) -> Flow[TopicState | None]:
    """Return the topic as :func:`open_topic` does.

    A user who may only read gets the topic as it is, None when there is none; so does everyone
    while Redis pauses writes.
    """
    try:
        return (yield from open_topic(keys, partitions, born, optional=partitions is None))
    except (Unauthorized, ReadOnly, WritesPaused):
        return (yield from read_topic(keys))


def grow_topic(keys: TopicKeys, partitions: int) -> Flow[TopicState]:
    """Let the topic have so many partitions; those it has stay as they are. The present number
    changes nothing. Safe to repeat.

    Raises TopicShrinks when it has more, TopicMissing, ConfigError.
    """
    check_partitions(partitions)
    known = yield from open_topic(keys, None, "")
    found = _topic(keys, (yield _topic_call(keys, partitions, known.born, grows=True))) or known
    if found.partitions > partitions:
        raise TopicShrinks(topic=keys.name, found=found.partitions, expected=partitions)
    return found


def keep_alive(keys: TopicKeys, known: TopicState) -> Flow[TopicState]:
    """Let the topic live on, and make it anew when Redis has lost it. The result is what it is now:
    it may have grown.
    """
    return _topic(keys, (yield _topic_call(keys, *known, grows=True))) or known


def read_topic(keys: TopicKeys) -> Flow[TopicState | None]:
    """The topic, None when there is none. Writes nothing."""
    return _topic(keys, (yield command("HMGET", keys.base, "partitions", "born")))


def join_group(
    keys: TopicKeys, known: TopicState, group: str, member: str, dead: Sequence[str] = ()
) -> Flow[GroupMembershipSnapshot]:
    """Be a member of a group for MEMBER_TTL_MS. ``dead`` are members known to be dead, which are
    forgotten. Does what :func:`keep_alive` does.
    """
    topic, (now, *items) = yield [
        _topic_call(keys, *known, grows=True),
        _member_call(keys, group, member, MEMBER_TTL_MS, dead),
    ]
    pairs = zip(items[0::2], items[1::2], strict=True)
    return GroupMembershipSnapshot(
        _topic(keys, topic) or known,
        int(now),
        {name.decode("utf-8", "replace"): int(float(until)) for name, until in pairs},
    )


def leave_group(keys: TopicKeys, group: str, member: str) -> Flow[None]:
    """Be a member no more. Safe to repeat."""
    yield _member_call(keys, group, member, 0, ())


def member_counts(keys: TopicKeys, groups: Sequence[str]) -> Flow[list[int]]:
    """Return the present number of members of each group."""
    if not groups:
        return []
    now = yield script("server_time", (keys.base,), ())
    return (yield [command("ZCOUNT", keys.members(group), now, "+inf") for group in groups])  # type: ignore[no-any-return]


def is_registered(queue: QueueKeys, group: str) -> Flow[bool]:
    """Whether a partition queue knows of a group."""
    return bool((yield command("HEXISTS", queue.acks, group)))


def _topic_call(
    keys: TopicKeys, partitions: int, born: str, *, grows: bool = False, optional: bool = False
) -> RedisCall:
    args = (partitions, born, int(grows), TOPIC_RECORD_TTL_S, keys.changed_channel)
    return script("topic", (keys.base,), args, optional=optional)


def _member_call(
    keys: TopicKeys, group: str, member: str, stay_ms: int, dead: Sequence[str]
) -> RedisCall:
    return script(
        "topic_member",
        (keys.members(group),),
        (member, stay_ms, MEMBERS_KEY_TTL_S, keys.changed_channel, group, *dead),
    )


def _topic(keys: TopicKeys, reply: Sequence[bytes | None]) -> TopicState | None:
    partitions, born = reply
    if partitions is None or partitions == b"0":
        return None
    if not partitions.isdigit() or not 1 <= int(partitions) <= MAX_PARTITIONS:
        found = (
            "the number of partitions of the topic is"
            f" {partitions[:40].decode('utf-8', 'replace')!r}"
        )
        raise QueueDamaged(
            queue=partition_queue(keys.name, 0), found=found, expected=f"1 to {MAX_PARTITIONS}"
        )
    return TopicState(int(partitions), (born or b"").decode("utf-8", "replace"))
