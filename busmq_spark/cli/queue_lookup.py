"""The look-up of what a user named: links, queues, stored messages, or an error with a remedy.

Errors of the core in the words of the command line: same codes, and a remedy that can be
typed.

From what the user named to open links and located queues.

Reading stored messages by id for people: nothing is removed, and ids that are no longer stored
are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from shlex import quote
from typing import Any

from busmq_spark.errors import BusError, ConfigError, QueueFull, QueueMissing, TopicMissing
from busmq_spark.groups.topic import (
    TopicState,
    check_topic,
    partition_home,
    partition_queue,
    read_topic,
)
from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys, TopicKeys, server_index
from busmq_spark.queue.message import Message
from busmq_spark.reading.range_reader import RangeCursor, find_id
from busmq_spark.reading.reader_operations import QueueState, states
from busmq_spark.redis_io.layout import Link, redis_layout, sync_links
from busmq_spark.redis_io.queue_location import locate


class _WithShellName(BusError):
    """An error whose text has the name of the queue, quoted for a shell, in a command."""

    def __init__(self, **details: Any) -> None:
        super().__init__(**{**details, "typed": quote(details["queue"])})


class CliQueueMissing(_WithShellName, QueueMissing):
    """The queue does not exist on the servers named."""

    template = (
        "there is no queue {queue!r} on {servers}. List them with: busmq queues; create it with:"
        " busmq push {typed} <message>"
    )


class CliQueueFull(_WithShellName, QueueFull):
    """The queue is at its maxsize."""

    template = (
        "queue {queue!r} holds its maxsize of {maxsize} messages; {stored} of the messages given"
        " were stored, {left} were not. Let a consumer drain it, for example: busmq tail {typed}"
        " --consume"
    )


class MessageMissing(_WithShellName):
    """None of the requested ids is stored."""

    code = "BUSMQ_MESSAGE_MISSING"
    template = (
        "queue {queue!r} does not hold {wanted}; it holds {found}. Acknowledged messages leave the"
        " queue; see: busmq info {typed}"
    )


COMMAND_PATIENCE_S = 1.5
"""Seconds after which commands give up: a person waits. Links of queries wait 8 or 60 s
(redis_io/retry.py).
"""


@dataclass(frozen=True, slots=True)
class LocatedQueue:
    """A queue and the link to the server that owns it."""

    keys: QueueKeys
    link: Link

    @property
    def server(self) -> str:
        """Masked address."""
        return self.link.endpoint.masked_url

    def read_state(self) -> QueueState:
        """The queue as it is now, existing or not."""
        return self.link.run(states([(self.keys, -1)]))[0]


def need_redis(options: RedisOptions) -> None:
    """Raises ConfigError when no Redis is named."""
    if not options.url:
        raise ConfigError(
            reason=(
                "no Redis is named. Give --redis redis://host:port or set BUSMQ_REDIS_URL; to try"
                " things out start one with: busmq embedded"
            )
        )


@contextmanager
def open_links(options: RedisOptions) -> Iterator[list[Link]]:
    """Links to every server named; raises ConfigError when none is. Nothing is connected yet."""
    need_redis(options)
    links = sync_links(redis_layout(options), COMMAND_PATIENCE_S)
    try:
        yield links
    finally:
        for link in links:
            link.close()


def keys_of(name: str, links: list[Link]) -> QueueKeys:
    """Return the keys of a queue as these servers spell them."""
    return QueueKeys(name, cluster=links[0].cluster)


def find_topic(name: str, links: list[Link]) -> tuple[TopicKeys, TopicState]:
    """A topic that exists. Raises TopicMissing, ConfigError."""
    keys = TopicKeys(check_topic(name), cluster=links[0].cluster)
    found = links[server_index(keys.base, len(links))].run(read_topic(keys))
    if found is None:
        raise TopicMissing(topic=name)
    return keys, found


def locate_partitions(name: str, partitions: range, links: list[Link]) -> list[LocatedQueue]:
    """Return the places of partition queues of a topic, existing or future."""
    queues = [keys_of(partition_queue(name, i), links) for i in partitions]
    found = locate(queues, links, [partition_home(i, len(links)) for i in partitions])
    return [LocatedQueue(keys, links[index]) for keys, index in zip(queues, found, strict=True)]


def locate_queue(name: str, links: list[Link]) -> LocatedQueue:
    """Return the place of a queue, existing or future."""
    if not name:
        raise ConfigError(reason="the name of the queue is empty")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigError(reason=f"the name of the queue, {name!a}, is not UTF-8 text") from None
    keys = keys_of(name, links)
    return LocatedQueue(keys, links[locate([keys], links)[0]])


def locate_existing(name: str, links: list[Link]) -> tuple[LocatedQueue, QueueState]:
    """Return the place of a queue, and its state; raises CliQueueMissing."""
    place = locate_queue(name, links)
    state = place.read_state()
    if not state.exists:
        raise CliQueueMissing(
            queue=name, servers=", ".join(link.endpoint.masked_url for link in links)
        )
    return place, state


def read_messages(place: LocatedQueue, first: int, last: int) -> Iterator[list[Message]]:
    """The stored ones of the messages ``first..last``, in order and in parts."""
    need = first
    while need <= last:
        start = _find_first_stored(place, need)
        if start is None or start[0] > last:
            return
        need, oldest = start
        cursor = RangeCursor(place.keys, need, last, oldest)
        while (call := cursor.ask()) is not None:
            reply = place.link.execute(call)
            messages = [Message(int(reply[i]), reply[i + 1]) for i in range(0, len(reply), 2)]
            ids = (messages[0].id, messages[-1].id) if messages else (0, 0)
            window = cursor.take(
                *ids, len(messages), sum(len(message.value) for message in messages)
            )
            # Messages that npm peers or an interrupted consumer put back may leave holes: then take
            # the stored ones and look again after them.
            part = (
                messages[window.start : window.stop]
                if window
                else [message for message in messages if need <= message.id <= last]
            )
            if part:
                yield part
                need = part[-1].id + 1
            if window is None:
                break


def _find_first_stored(place: LocatedQueue, need: int) -> tuple[int, int] | None:
    """The first stored id from ``need`` on, and the id the head would have if ids had no holes;
    return None when there is none.
    """
    oldest = int(place.link.execute(command("LINDEX", place.keys.messages, 0)) or 0)
    if oldest == 0:
        return None
    if need <= oldest:
        return oldest, oldest
    position, exact, following = place.link.run(find_id(place.keys, need))
    if exact:
        return need, need - position
    return (following, following - position - 1) if following else None
