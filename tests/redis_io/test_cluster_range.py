"""Range reads from a cluster: a list is found where it is, also while its slot moves and after."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from busmq_spark.embedded import EmbeddedCluster
from busmq_spark.errors import LinkLost, ServerRefused
from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.moving_endpoints import ClusterSeeds
from busmq_spark.redis_io.range_connection import ClusterRangeConnection
from busmq_spark.redis_io.sync_link import SyncClusterLink
from busmq_spark.redis_io.urls import parse
from tests.conftest import Fresh
from tests.moves import Move

VALUES = [b"%d" % i for i in range(1, 8)]


@pytest.fixture
def single(cluster_servers: EmbeddedCluster) -> Iterator[SyncClusterLink]:
    link = SyncClusterLink(ClusterSeeds(parse(cluster_servers.urls[0])))
    yield link
    link.close()


@pytest.fixture
def many(single: SyncClusterLink) -> Iterator[ClusterRangeConnection]:
    link = ClusterRangeConnection(single)
    yield link
    link.drop()


@pytest.fixture
def keys(single: SyncClusterLink, fresh: Fresh) -> QueueKeys:
    made = QueueKeys(fresh(), cluster=True)
    single.run(queue.attach(made, "born-1", ttl_s=60))
    single.run(queue.push_many(made, VALUES))
    return made


def read(many: ClusterRangeConnection, keys: QueueKeys) -> tuple[list[bytes], int, int, bytes]:
    many.post(command("LRANGE", keys.messages, 0, -1), command("HGET", keys.metadata, "born"))
    pairs = many.fetch_values()
    values = [
        bytes(pairs.data[at : at + size])
        for at, size in zip(pairs.starts, pairs.lengths, strict=True)
    ]
    return values, pairs.first, pairs.last, many.fetch()


WHOLE = (VALUES, 1, 7, b"born-1")


def test_each_queue_is_read_from_its_node(
    single: SyncClusterLink, many: ClusterRangeConnection, keys: QueueKeys, fresh: Fresh
) -> None:
    others = [QueueKeys(fresh(), cluster=True) for _ in range(12)]
    for other in others:
        single.run(queue.attach(other, "b", ttl_s=60))
        single.run(queue.push(other, other.name.encode()))
    assert read(many, keys) == WHOLE
    assert [read(many, other)[0] for other in others] == [[other.name.encode()] for other in others]
    assert many.waiting == 0


def test_a_list_whose_slot_has_moved_is_lost_once_and_then_found(
    cluster_servers: EmbeddedCluster,
    single: SyncClusterLink,
    many: ClusterRangeConnection,
    keys: QueueKeys,
) -> None:
    assert read(many, keys) == WHOLE
    Move(cluster_servers, keys.messages).whole()
    with pytest.raises(LinkLost):
        read(many, keys)
    assert many.waiting == 0
    assert read(many, keys) == WHOLE


@pytest.mark.parametrize("ahead", ["messages", "metadata"])
def test_while_the_slot_moves_each_key_is_read_where_it_is(
    cluster_servers: EmbeddedCluster,
    single: SyncClusterLink,
    many: ClusterRangeConnection,
    keys: QueueKeys,
    ahead: str,
) -> None:
    move = Move(cluster_servers, keys.messages)
    move.begin()
    move.migrate(getattr(keys, ahead))
    try:
        for _ in range(2):
            with pytest.raises(LinkLost):
                read(many, keys)
            assert read(many, keys) == WHOLE
    finally:
        move.migrate()
        move.end()
    with pytest.raises(LinkLost):
        read(many, keys)
    assert read(many, keys) == WHOLE


def test_an_empty_list_is_empty_on_the_detour_too(
    many: ClusterRangeConnection,
    cluster_servers: EmbeddedCluster,
    keys: QueueKeys,
    single: SyncClusterLink,
) -> None:
    single.run(queue.flush(keys))
    move = Move(cluster_servers, keys.messages)
    move.begin()
    with pytest.raises(LinkLost):
        read(many, keys)
    assert read(many, keys) == ([], 0, 0, b"born-1")
    move.migrate()
    move.end()


def test_an_error_of_another_kind_stays_what_it_is(
    many: ClusterRangeConnection, keys: QueueKeys
) -> None:
    many.post(command("LRANGE", keys.metadata, 0, -1))
    with pytest.raises(ServerRefused, match="wrong kind of value"):
        many.fetch_values()
