"""Three servers: npm busmq and this package put every queue in the same place, and find what the
other put elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from busmq_spark.embedded import EmbeddedStandaloneServers
from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.queue_location import discover_queues, locate
from busmq_spark.redis_io.sync_link import SyncLink
from tests.conftest import Fresh
from tests.peers.node import Peer

HINTS = [
    "orders",
    "audit",
    "a",
    "héllo",
    "日本語",
    "😀",
    "𝒳𝒴",
    "with space",
    "x" * 200,
    "0123",
    "ß",
    "\u00ff",
    "\uffff",
    "é" * 50,
    "{tag}",
]


@pytest.fixture(scope="module")
def peer(npm: None, three_servers: EmbeddedStandaloneServers) -> Iterator[Peer]:
    with Peer(three_servers.urls) as made:
        yield made
        assert made.errors == []


def test_a_queue_that_node_creates_is_where_we_look_for_a_new_one(
    peer: Peer, three_links: list[SyncLink], fresh: Fresh
) -> None:
    some = [QueueKeys(fresh(hint)) for hint in HINTS for _ in range(3)]
    expected = locate(some, three_links)
    for keys in some:
        peer.attach(keys.name)
        peer.push(keys.name, "x")
    assert set(expected) == {0, 1, 2}
    for keys, server in zip(some, expected, strict=True):
        assert [link.execute(command("LLEN", keys.messages)) for link in three_links] == [
            2 * (n == server) for n in range(3)
        ]
    found = dict(discover_queues(three_links))
    assert [found[keys.name] for keys in some] == expected


def test_a_queue_that_we_put_elsewhere_is_used_there_by_node(
    peer: Peer, three_links: list[SyncLink], fresh: Fresh
) -> None:
    for hint in HINTS:
        keys = QueueKeys(fresh(hint))
        elsewhere = (locate([keys], three_links)[0] + 1) % 3
        three_links[elsewhere].run(queue.attach(keys, "b", ttl_s=60))
        assert peer.attach(keys.name)
        assert peer.push(keys.name, "x") == 1
        assert three_links[elsewhere].run(queue.count(keys)) == 1
