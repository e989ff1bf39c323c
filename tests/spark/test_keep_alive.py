"""Queues are kept alive while a query runs: those of each server, or node of a cluster, whatever
happens to another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from busmq_spark.embedded import EmbeddedCluster, EmbeddedRedis, EmbeddedStandaloneServers
from busmq_spark.options import RedisOptions
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.spark.read.reader_threads import ReaderKeepAlive
from busmq_spark.store.protocol import QueueCreateOptions
from busmq_spark.store.redis_store import RedisStore, open_store
from tests.conftest import Fresh
from tests.moves import Move
from tests.spark.conftest import PATIENCE_S
from tests.spark.engine import Engine
from tests.support import wait_until

MakeEngine = Callable[..., Engine]
TTL_S = 9
ALONE = {"cluster-require-full-coverage": "no"}


@pytest.fixture(params=["direct", "cluster"])
def two(request: pytest.FixtureRequest) -> Iterator[EmbeddedStandaloneServers | EmbeddedCluster]:
    """Two servers that know nothing of each other, or a cluster whose nodes serve their slots also
    when one of them is dead.
    """
    if request.param == "direct":
        with EmbeddedStandaloneServers(2) as group:
            yield group
        return
    with EmbeddedCluster(3, 0, settings=ALONE) as cluster:
        yield cluster


def servers_of(group: EmbeddedStandaloneServers | EmbeddedCluster) -> list[EmbeddedRedis]:
    return group.nodes if isinstance(group, EmbeddedCluster) else group.servers


def one_queue_each(
    store: RedisStore, group: EmbeddedStandaloneServers | EmbeddedCluster, fresh: Fresh
) -> dict[EmbeddedRedis, QueueKeys]:
    """The keys of a queue on each server, created."""
    found: dict[EmbeddedRedis, QueueKeys] = {}
    while len(found) < 2:
        keys = store.keys(fresh())
        server = (
            group.owner(keys.metadata)
            if isinstance(group, EmbeddedCluster)
            else group.servers[store.locate([keys.name])[keys.name]]
        )
        found.setdefault(server, keys)
    store.attach([keys.name for keys in found.values()], QueueCreateOptions(True, TTL_S))
    return found


def wait_touched(server: EmbeddedRedis, times: int, *keys: str) -> None:
    """Until each key has been given a longer life than it had left, so often."""
    left: dict[str, list[int]] = {key: [] for key in keys}

    def are_touched() -> bool:
        for key, lives in left.items():
            now = server.command("PTTL", key)
            assert isinstance(now, int)
            assert now > 0, f"{key} is gone, or has no end"
            lives.append(now)
        return all(
            sum(before < after for before, after in pairwise(lives)) >= times
            for lives in left.values()
        )

    wait_until(are_touched, PATIENCE_S, f"{keys} are touched")


@pytest.mark.parametrize("options", [{}, {"ack": "none"}], ids=["leased", "not leased"])
def test_a_server_or_node_that_is_dead_ends_no_queue_and_no_lease_of_another(
    two: EmbeddedStandaloneServers | EmbeddedCluster,
    engine: MakeEngine,
    fresh: Fresh,
    options: dict[str, str],
) -> None:
    url, layout = ",".join(two.urls), "cluster" if isinstance(two, EmbeddedCluster) else "direct"
    store = open_store(RedisOptions(url=url, layout=layout))
    keys = one_queue_each(store, two, fresh)
    names = ",".join(each.name for each in keys.values())
    query = engine({"redis.url": url, "redis.layout": layout, "subscribe": names, **options})
    query.step()
    (dead, _), (well, kept) = sorted(
        keys.items(), key=lambda item: servers_of(two).index(item[0])
    )  # the first one is asked first
    dead.kill()
    wait_touched(well, 2, *((kept.metadata, kept.lease("")) if not options else (kept.metadata,)))
    dead.restart()
    query.kill()
    store.close()


class Failing:
    """A store that fails in a way that nothing expects, once."""

    def __init__(self, store: RedisStore) -> None:
        self._store, self.failed = store, False

    def __getattr__(self, name: str) -> object:
        if name == "keep_alive" and not self.failed:
            self.failed = True
            raise ZeroDivisionError("unexpected")
        return getattr(self._store, name)


def test_an_unexpected_error_is_logged_and_does_not_end_the_keep_alive(
    redis_server: EmbeddedRedis, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(RedisOptions(url=redis_server.url))
    keys = store.keys(fresh())
    store.attach([keys.name], QueueCreateOptions(True, 60))
    failing = Failing(open_store(RedisOptions(url=redis_server.url)))
    # It has what it needs
    keep = ReaderKeepAlive(lambda: failing, "", "")  # type: ignore[arg-type,return-value]
    keep.add_queues({keys.name: 3}, store.failure_domains([keys.name]))
    wait_touched(redis_server, 1, keys.metadata)
    assert failing.failed
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [
        ZeroDivisionError
    ]
    keep.stop()
    store.close()


def test_a_queue_whose_slot_moves_is_kept_alive_with_those_of_its_new_node(fresh: Fresh) -> None:
    with EmbeddedCluster(3, 0, settings=ALONE) as cluster:
        store = open_store(RedisOptions(url=",".join(cluster.urls), layout="cluster"))
        keys = one_queue_each(store, cluster, fresh)
        keep = ReaderKeepAlive(
            lambda: open_store(RedisOptions(url=",".join(cluster.urls), layout="cluster")), "", ""
        )
        keep.add_queues(
            {each.name: TTL_S for each in keys.values()},
            store.failure_domains([each.name for each in keys.values()]),
        )
        moved = next(iter(keys.values()))
        move = Move(cluster, moved.metadata)
        move.whole()
        wait_touched(move.target, 2, moved.metadata)
        move.source.kill()
        wait_touched(move.target, 2, moved.metadata)
        keep.stop()
        store.close()
