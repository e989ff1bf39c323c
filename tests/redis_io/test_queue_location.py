"""Which of several servers has a queue, and which queues there are."""

from __future__ import annotations

import pytest

from busmq_spark.embedded import EmbeddedCluster, EmbeddedRedis
from busmq_spark.errors import LinkLost
from busmq_spark.options import RedisOptions
from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys, server_index
from busmq_spark.reading import reader_operations
from busmq_spark.reading.reader_operations import CumulativeAckRequest
from busmq_spark.redis_io.layout import redis_layout, sync_links
from busmq_spark.redis_io.queue_location import discover_queues, locate, new_token
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import RedisServerAddress
from tests.conftest import Fresh, FreshKeys
from tests.stored import read_at

NAMES = [
    "orders",
    "a",
    "b",
    "q1",
    "héllo",
    "😀",
    "0123456789",
    "with space",
    "x" * 300,
    "日本語",
    "{tag}",
    "a*b?[c]",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_new_queue_belongs_to_the_server_its_key_hashes_to(
    three_links: list[SyncLink], name: str, fresh: Fresh
) -> None:
    keys = QueueKeys(fresh(name))
    assert locate([keys], three_links) == [server_index(keys.metadata, 3)]


@pytest.mark.parametrize("where", [0, 1, 2])
def test_an_existing_queue_is_used_where_it_is_whatever_its_hash(
    three_links: list[SyncLink], fresh_keys: FreshKeys, where: int
) -> None:
    some = [fresh_keys() for _ in range(4)]
    for keys in some:
        three_links[where].run(queue.attach(keys, "b", ttl_s=60))
    new = fresh_keys()
    assert locate([*some, new], three_links) == [where] * 4 + [server_index(new.metadata, 3)]


def test_with_one_server_no_command_is_sent() -> None:
    assert locate(
        [QueueKeys("a"), QueueKeys("b")], [SyncLink(RedisServerAddress("127.0.0.1", 1))]
    ) == [0, 0]


def test_while_a_server_is_down_no_place_is_guessed(
    three_links: list[SyncLink], fresh_keys: FreshKeys
) -> None:
    with EmbeddedRedis() as server:
        port = server.port
    down = SyncLink(RedisServerAddress("127.0.0.1", port), patience_s=0.05)
    with pytest.raises(LinkLost):
        locate([fresh_keys()], [three_links[0], down])


def test_discover_finds_every_queue_on_every_server_and_nothing_else(
    three_links: list[SyncLink], fresh: Fresh
) -> None:
    wanted = {fresh(name): n % 3 for n, name in enumerate(NAMES)}
    for name, server in wanted.items():
        keys = QueueKeys(name)
        three_links[server].run(queue.attach(keys, "b", ttl_s=60))
        three_links[server].run(queue.push(keys, b"x"))
        three_links[server].run(reader_operations.subscribe([keys], "s", ["earliest"]))
    persisted, no_queue = fresh(), fresh()
    three_links[0].execute(command("SET", f"bus:persisted:{persisted}", 1))
    three_links[0].execute(
        command("RPUSH", QueueKeys(no_queue).messages, 1)
    )  # a queue is what has metadata
    found = discover_queues(three_links)
    assert found == sorted(found)
    assert {
        name: server for name, server in found if name in {*wanted, persisted, no_queue}
    } == wanted  # other tests have queues there too
    three_links[0].execute(command("UNLINK", QueueKeys(no_queue).messages))


def test_discover_walks_past_many_keys(three_links: list[SyncLink], fresh: Fresh) -> None:
    hint = fresh("many")
    three_links[1].execute(
        [command("HSET", QueueKeys(f"{hint}.{n}").metadata, "ttl", 60) for n in range(2500)]
    )
    assert (
        len(
            [
                name
                for name, server in discover_queues(three_links)
                if name.startswith(f"{hint}.") and server == 1
            ]
        )
        == 2500
    )
    three_links[1].execute(
        [command("UNLINK", QueueKeys(f"{hint}.{n}").metadata) for n in range(2500)]
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_queue_lives_its_whole_life_on_its_server(
    three_links: list[SyncLink], fresh: Fresh, name: str
) -> None:
    keys = QueueKeys(fresh(name))
    link = three_links[locate([keys], three_links)[0]]
    there = link.run(queue.attach(keys, new_token(), ttl_s=60))
    assert link.run(queue.push_many(keys, [b"a", b"b", b"c"])) == 3
    assert [m.id for m in link.run(queue.pop(keys, reliable=True, ttl_s=60, most=2))] == [1, 2]
    link.run(queue.ack(keys, 1, ttl_s=60, restore=True))
    assert [
        result.status
        for result in link.run(
            reader_operations.ack_to([CumulativeAckRequest(keys, 2, there.born, "")])
        )
    ] == ["ok"]
    assert [(m.id, m.value) for m in link.run(read_at(keys, 0, 9))] == [(3, b"c")]
    others = [other for other in three_links if other is not link]
    assert [other.execute(command("EXISTS", *keys.all)) for other in others] == [0, 0]
    link.run(queue.delete(keys))
    assert locate([keys], three_links) == [server_index(keys.metadata, 3)]


def test_tokens_are_of_their_length_and_unlike_each_other() -> None:
    tokens = {new_token() for _ in range(1000)}
    assert len(tokens) == 1000
    assert {len(token) for token in tokens} == {16}
    assert len(new_token(128)) == 32


def test_discover_finds_the_queues_of_every_node_of_a_cluster(
    cluster_servers: EmbeddedCluster, fresh: Fresh
) -> None:
    [link] = sync_links(redis_layout(RedisOptions(url=cluster_servers.urls[0], layout="cluster")))
    names = [fresh(name) for name in NAMES]
    for name in names:
        link.run(queue.attach(QueueKeys(name, cluster=True), "b", ttl_s=60))
    assert (
        len({cluster_servers.owner(QueueKeys(name, cluster=True).metadata).port for name in names})
        > 1
    )
    assert {(name, 0) for name in names} <= set(discover_queues([link]))
    assert locate([QueueKeys(name, cluster=True) for name in names], [link]) == [0] * len(names)
    link.close()
