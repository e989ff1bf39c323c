"""Which client removed messages: a consumer is distinguished from readers of the query, on any node
and in any process.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from busmq_spark.embedded import EmbeddedCluster, EmbeddedRedis
from busmq_spark.queue.keys import QueueKeys
from tests.spark.conftest import Bus
from tests.support import PATIENCE_S, wait_until


class Causes:
    """A Java store whose messages were removed, and listeners of other processes."""

    def __init__(self, spark: SparkSession, stack: ExitStack) -> None:
        self._jvm: Any = spark._jvm
        self._stack = stack

    def store(self, **options: str) -> Any:
        given = self._jvm.java.util.HashMap()
        for name, text in {"subscribe": "any", **options}.items():
            given.put(name.replace("_", "."), text)
        made = self._jvm.busmq.spark.store.ReadStore(
            self._jvm.busmq.spark.options.ReadOptions.parse(given).redis()
        )
        self._stack.callback(made.close)
        return made

    def code(self, store: Any, queue: str) -> str:
        loss = self._jvm.busmq.spark.core.Loss("removed", "ids", "none", 1)
        return str(store.lossError(queue, loss).getCondition())

    def listen(self, server: EmbeddedRedis, channel: str) -> None:
        line = self._stack.enter_context(
            socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
        )
        line.sendall(f"SUBSCRIBE {channel}\r\n".encode())
        wait_until(lambda: b":1" in line.recv(1000), PATIENCE_S)


@pytest.fixture
def causes(spark: SparkSession, shim_jar: Path) -> Iterator[Causes]:
    with ExitStack() as stack:
        yield Causes(spark, stack)


def test_a_consumer_that_listens_at_another_node_of_a_cluster_counts(
    causes: Causes, cluster_servers: EmbeddedCluster, queue: str
) -> None:
    keys = QueueKeys(queue, cluster=True)
    store = causes.store(redis_url=",".join(cluster_servers.urls), redis_layout="cluster")
    assert causes.code(store, queue) == "BUSMQ_QUEUE_FLUSHED"
    owner = cluster_servers.owner(keys.messages)
    causes.listen(
        next(node for node in cluster_servers.masters if node is not owner), keys.available
    )
    assert causes.code(store, queue) == "BUSMQ_CONSUMED_ELSEWHERE"


def test_executors_that_have_followed_a_queue_are_no_other_consumers(
    causes: Causes, bus: Bus, redis_server: EmbeddedRedis, queue: str
) -> None:
    store = causes.store(redis_url=bus.url)
    store.setOwnListeners(queue, 2)
    for expected in ("BUSMQ_QUEUE_FLUSHED", "BUSMQ_QUEUE_FLUSHED", "BUSMQ_CONSUMED_ELSEWHERE"):
        causes.listen(redis_server, QueueKeys(queue).available)
        assert causes.code(store, queue) == expected
