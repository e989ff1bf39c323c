"""A fail-over under confirmed pushes: with ``memory`` it loses some, with ``replicated`` none.

The replica hears nothing from its master for a while, as on a slow network. On one machine a kill
alone would lose nothing: the kernel still delivers what the master has sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from busmq_spark import Bus, Outbox
from busmq_spark.embedded.layouts import EmbeddedSentinel
from busmq_spark.errors import NotReplicated
from busmq_spark.queue.keys import QueueKeys
from tests.federation.cutting import Cutter, cutter
from tests.replicated import count, info
from tests.support import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.fault]
COUNT = 30


@pytest.fixture
def servers() -> Iterator[tuple[EmbeddedSentinel, Cutter]]:
    """A master and its replica, which hears it through a cutter. The sentinel would connect them
    directly after the time-out of a fail-over.
    """
    with EmbeddedSentinel(1, 1, down_after_s=0.3, failover_timeout_s=3600) as sentinel:
        [replica] = sentinel.replicas
        with cutter(sentinel.master.port) as between:
            replica.command("REPLICAOF", "127.0.0.1", str(between.port))
            wait_until(lambda: "master_link_status:up" in info(replica))
            wait_until(lambda: "state=online" in info(sentinel.master))
            yield sentinel, between


def stored(sentinel: EmbeddedSentinel) -> dict[int, str]:
    """The messages of the queue, by id."""
    words = sentinel.master.command("LRANGE", QueueKeys("orders", False).messages, "0", "-1")
    assert isinstance(words, list)
    texts = [str(word) for word in words]
    return {int(id): value for id, value in zip(texts[::2], texts[1::2], strict=True)}


def fail_over(sentinel: EmbeddedSentinel) -> None:
    sentinel.kill_master()
    sentinel.wait_healthy()


@pytest.mark.parametrize("durability", ["memory", "replicated"])
async def test_a_failover_keeps_what_is_confirmed(
    servers: tuple[EmbeddedSentinel, Cutter], durability: Any
) -> None:
    sentinel, between = servers
    confirmed: dict[int, str] = {}
    there = Bus(sentinel.urls, layout="sentinel", durability=durability, durability_timeout_s=0.05)
    async with there as bus, bus.queue("orders") as orders:
        for n in range(2 * COUNT):
            if n == COUNT:
                between.hush()
            try:
                confirmed[await orders.push(f"value {n}")] = f"value {n}"
            except NotReplicated:
                assert n >= COUNT
        fail_over(sentinel)
        found = stored(sentinel)
    lost = {id: value for id, value in confirmed.items() if found.get(id) != value}
    # The control: without a wait for the replica the same run loses confirmed pushes.
    assert len(lost) >= COUNT if durability == "memory" else not lost
    assert len(confirmed) == (2 * COUNT if durability == "memory" else COUNT)


@pytest.mark.parametrize("durability", ["memory", "replicated"])
def test_an_outbox_keeps_what_no_replica_has(
    servers: tuple[EmbeddedSentinel, Cutter], tmp_path: Path, durability: Any
) -> None:
    sentinel, between = servers
    settings = {"layout": "sentinel", "durability": durability, "durability_timeout_s": 0.05}
    values = [f"value {n}" for n in range(COUNT)]
    with Outbox.sync(tmp_path / "outbox.db", sentinel.urls, **settings) as outbox:
        outbox.push("orders", "first")
        outbox.wait_drained(60)
        wait_until(lambda: count(sentinel.replicas[0], "orders") == 1)
        between.hush()
        outbox.push("orders", *values)
        if durability == "memory":
            outbox.wait_drained(60)
        else:
            wait_until(lambda: "BUSMQ_NOT_REPLICATED" in str(outbox.status()))
        assert count(sentinel.master, "orders") == 1 + COUNT
        old = sentinel.master
        fail_over(sentinel)
        if durability == "memory":
            assert not set(values) & set(stored(sentinel).values())
            return
        old.restart()  # which the sentinel makes a replica of the new master
        outbox.wait_drained(120)
        assert list(stored(sentinel).values()) == ["first", *values]
