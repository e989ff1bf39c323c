"""A fail-over in which Redis lost acknowledged pushes, and gave their ids to other messages: found
out, never skipped over.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from busmq_spark.embedded import EmbeddedCluster, EmbeddedRedis, EmbeddedSentinel
from busmq_spark.errors import DataLoss, IdsReissued, RedisRolledBack
from tests.faults.scene import Bus
from tests.spark.engine import Engine
from tests.support import wait_in_sync, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.redis, pytest.mark.slow]


class Split:
    """A master and its replica, which does not hear from it any more; both behind a layout."""

    def __init__(self, group: EmbeddedSentinel | EmbeddedCluster) -> None:
        clustered = isinstance(group, EmbeddedCluster)
        self.bus = Bus(
            **{
                "redis.url": ",".join(group.urls),
                "redis.layout": "cluster" if clustered else "sentinel",
            }
        )
        self.bus.create("q")
        self.master: EmbeddedRedis = (
            group.owner(self.bus.keys("q").metadata)
            if isinstance(group, EmbeddedCluster)
            else group.master
        )
        self.group = group

    def replica(self) -> EmbeddedRedis:
        role = self.master.command("ROLE")
        assert isinstance(role, list)
        assert isinstance(role[2], list)
        ports = {int(each[1]) for each in role[2] if isinstance(each, list)}
        servers = (
            self.group.nodes if isinstance(self.group, EmbeddedCluster) else self.group.servers
        )
        return next(server for server in servers if server.port in ports)

    def part(self) -> EmbeddedRedis:
        """The replica has everything up to now, and nothing of what comes."""
        wait_in_sync(self.master)
        replica = self.replica()
        replica.pause()
        self.master.command("CLIENT", "KILL", "TYPE", "replica")
        return replica

    def fail_over_to(self, replica: EmbeddedRedis) -> None:
        self.master.kill()
        replica.resume()


@pytest.fixture
def split(layout: str) -> Iterator[Split]:
    # Long enough that a replica which is stopped for a moment is neither missed nor too old to be
    # chosen.
    with (
        EmbeddedSentinel(down_after_s=2.5)
        if layout == "sentinel"
        else EmbeddedCluster(node_timeout_s=3)
    ) as group:
        yield Split(group)


@pytest.mark.parametrize(
    ("layout", "again", "error"),
    [("sentinel", 1, RedisRolledBack), ("sentinel", 5, IdsReissued), ("cluster", 5, IdsReissued)],
)
def test_ids_that_a_failover_gave_to_other_messages_stop_the_query(
    split: Split, again: int, error: type[DataLoss]
) -> None:
    engine = Engine({**split.bus.where, "subscribe": "q"})
    split.bus.push("q", [b"kept-%d" % n for n in range(5)])
    assert [id for _, id, _ in engine.step() or ()] == [1, 2, 3, 4, 5]
    replica = split.part()
    split.bus.push("q", [b"lost-%d" % n for n in range(3)])
    assert [id for _, id, _ in engine.step() or ()] == [6, 7, 8]
    split.fail_over_to(replica)
    split.bus.push("q", [b"other-%d" % n for n in range(again)])
    with pytest.raises(error, match="queue 'q'"):
        wait_until(lambda: engine.drain() is None, what="the next poll sees it")
    engine.kill()
    engine.reader.stop()
