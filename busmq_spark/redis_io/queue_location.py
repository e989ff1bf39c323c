"""Which server owns a queue: the one that has it, else the one its name hashes to (protocol chapter
2). If several have it, the one its name hashes to is used, else the first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import (
    QueueKeys,
    metadata_pattern,
    queue_name,
    server_index,
    topic_name,
    topic_pattern,
)

if TYPE_CHECKING:  # writers of a sink that only plan take a token here, and need no client of Redis
    from busmq_spark.redis_io.layout import Link
    from busmq_spark.redis_io.sync_link import SyncLink

KEYS_PER_SCAN = 1000
"""Keys that Redis looks at in one step of a walk over all of them: about half a millisecond."""


def locate(
    queues: Sequence[QueueKeys], links: Sequence[Link], homes: Sequence[int] = ()
) -> list[int]:
    """The index of the server of each queue, with one round trip per server. ``homes``: where each
    is created, if not where its name hashes to.

    Raises LinkLost when a server does not answer: to guess then would split a queue over two
    servers (protocol Q30).
    """
    if len(links) == 1 or not queues:
        return [0] * len(queues)
    found: list[list[int]] = [[] for _ in queues]
    for index, link in enumerate(links):
        for place, exists in zip(
            found, link.execute([command("EXISTS", keys.metadata) for keys in queues]), strict=True
        ):
            if exists:
                place.append(index)
    hashed = [server_index(keys.metadata, len(links)) for keys in queues]
    return [
        choose_server(place, at) if place else home
        for place, at, home in zip(found, hashed, homes or hashed, strict=True)
    ]


def choose_server(having: Sequence[int], home: int) -> int:
    """The one server whose queue is used, of those that have it; ``home`` is the one that the key
    hashes to.
    """
    return home if home in having or not having else min(having)


def no_pause() -> None:
    """No pause between two steps."""


def discover_queues(
    links: Sequence[Link], pace: Callable[[], object] = no_pause
) -> list[tuple[str, int]]:
    """Every queue that exists, with the index of its server, sorted by name. Walks with SCAN, so
    Redis is never held.

    ``pace`` is called between two steps of ``KEYS_PER_SCAN`` keys each, and may wait.
    """
    names: dict[str, int] = {}
    for index, link in enumerate(links):
        found = link.ask_each_master(partial(queues_of, pace=pace, cluster=link.cluster))
        for name in chain.from_iterable(found):
            if name not in names or server_index(QueueKeys(name).metadata, len(links)) == index:
                names[name] = index
    return sorted(names.items())


def queues_of(
    link: SyncLink, pace: Callable[[], object] = no_pause, *, cluster: bool = False
) -> list[str]:
    """The queues of one server; those that come or go meanwhile may be missed."""
    return _scan_names(
        link, metadata_pattern(cluster=cluster), partial(queue_name, cluster=cluster), pace
    )


def discover_topics(links: Sequence[Link]) -> list[str]:
    """Every topic, by name."""
    cluster = links[0].cluster
    ask = partial(
        _scan_names,
        pattern=topic_pattern(cluster=cluster),
        name_of=partial(topic_name, cluster=cluster),
        pace=no_pause,
    )
    return sorted({name for link in links for part in link.ask_each_master(ask) for name in part})


def _scan_names(
    link: SyncLink, pattern: str, name_of: Callable[[str], str | None], pace: Callable[[], object]
) -> list[str]:
    names: list[str] = []
    cursor: bytes | int = 0
    while True:
        cursor, keys = link.execute(
            command("SCAN", cursor, "MATCH", pattern, "COUNT", KEYS_PER_SCAN)
        )
        for key in keys:
            with suppress(
                UnicodeDecodeError
            ):  # no name that we or npm clients could spell: not a queue of the bus
                if (name := name_of(key.decode())) is not None:
                    names.append(name)
        if int(cursor) == 0:
            return names
        pace()


def new_token(bits: int = 64) -> str:
    """A random name, for incarnations, leases and attempts; unlike any other with certainty enough,
    not a secret.
    """
    return os.urandom(bits // 8).hex()
