"""A server of npm busmq as one of two data centres, read by real Spark. Losses over its wire:
tests/peers/test_npm_losses.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.conftest import Fresh
from tests.peers.node import missing, need
from tests.peers.npm import Npm
from tests.spark.centres import SECRET, DataCentre
from tests.spark.conftest import Bus, MakeBus, Sink, Stream

pytestmark = [pytest.mark.redis, pytest.mark.peer]
NODE_SECRET = "the-secret-of-a-node-server"


@pytest.fixture(scope="module")
def node(redis_url: str) -> Iterator[Npm]:
    need(missing())
    made = Npm(redis_url, NODE_SECRET)
    yield made
    assert made.peer.errors == []
    made.peer.kill()


@pytest.fixture
def at_node(node: Npm) -> dict[str, str]:
    """Options for the Node server alone."""
    where = {
        "federation.url": f"node=ws://127.0.0.1:{node.port}/bus",
        "federation.node.secret": NODE_SECRET,
    }
    return {**where, "federation.secretInUrl": "node"}


@pytest.fixture
def both(
    at_node: dict[str, str], data_centres: dict[str, DataCentre], queue: str
) -> dict[str, str]:
    """Options that read one queue of both."""
    url = f"{at_node['federation.url']},eu={data_centres['eu'].url}"
    return {**at_node, "federation.url": url, "federation.eu.secret": SECRET, "subscribe": queue}


@pytest.fixture
def homes(bus: Bus, bus_of: MakeBus, data_centres: dict[str, DataCentre]) -> dict[str, Bus]:
    return {"node": bus, "eu": bus_of(data_centres["eu"].redis)}


def test_a_node_server_dies_and_comes_back_and_a_restart_goes_on_from_the_checkpoint(
    stream: Stream, node: Npm, both: dict[str, str], homes: dict[str, Bus], tmp_path: Path
) -> None:
    queue = both["subscribe"]

    def fill(first: int, last: int) -> None:
        for home in homes.values():
            home.fill(queue, last - first + 1, first=first)

    fill(1, 500)
    query = stream(both)
    query.wait_rows(1000)
    node.restart()
    fill(501, 1000)
    query.wait_rows(1500)
    node.drop()
    query.wait_rows(2000)
    query.wait_for(lambda: all(home.ids(queue) == [] for home in homes.values()), "all acked")
    query.query.stop()
    fill(1001, 1100)
    again = stream(both)
    again.wait_rows(200)
    rows = [*query.rows, *again.rows]
    for source in homes:
        assert [row["id"] for row in rows if row["source"] == source] == list(range(1, 1101))
    assert {bytes(row["value"]) for row in rows} == {
        f"{queue}:{i}".encode() for i in range(1, 1101)
    }
    kept = [file.read_text(errors="replace") for file in tmp_path.rglob("*") if file.is_file()]
    assert any(queue in text for text in kept)
    assert not [text for text in kept if NODE_SECRET in text]


def test_a_batch_read_and_a_stream_that_is_written_back_at_least_once(
    spark: SparkSession, sink: Sink, at_node: dict[str, str], bus: Bus, fresh: Fresh
) -> None:
    source, target = fresh("in"), fresh("out")
    bus.fill(source, 300)
    frame = spark.read.format("busmq").options(**at_node, subscribe=source, minPartitions=3).load()
    assert [(row["id"], bytes(row["value"])) for row in frame.orderBy("id").collect()] == [
        (i, f"{source}:{i}".encode()) for i in range(1, 301)
    ]
    changes = spark.readStream.format("busmq").options(**at_node, subscribe=source).load()
    sink(changes, {**at_node, "queue": target, "delivery": "at-least-once"})
    assert bus.stored(target) == [f"{source}:{i}".encode() for i in range(1, 301)]
    with pytest.raises(PySparkException, match="nothing is written exactly once"):
        spark.createDataFrame([("x",)], "value string").write.format("busmq").options(
            **at_node, queue=target
        ).mode("append").save()
