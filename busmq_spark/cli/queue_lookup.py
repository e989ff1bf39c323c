"""From what the user named to open links and located queues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from busmq_spark.cli.cli_errors import CliQueueMissing
from busmq_spark.errors import ConfigError, TopicMissing
from busmq_spark.groups.topic import (
    TopicState,
    check_topic,
    partition_home,
    partition_queue,
    read_topic,
)
from busmq_spark.options import RedisOptions
from busmq_spark.queue.keys import QueueKeys, TopicKeys, server_index
from busmq_spark.reading.reader_operations import QueueState, states
from busmq_spark.redis_io.link_factory import Link, sync_links
from busmq_spark.redis_io.queue_location import locate
from busmq_spark.redis_io.redis_layout import redis_layout

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
