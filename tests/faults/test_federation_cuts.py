"""A query from one data centre into another, over links that are cut all the time: each row arrives
once, in order.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from busmq_spark.embedded import EmbeddedRedis
from tests.faults.process import DriverProcess
from tests.faults.scene import Bus
from tests.federation.bulk_site import SECRET, site
from tests.federation.cutting import Cutter, cutter
from tests.support import wait_until

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
ROWS, BACKLOG = 35_000, 25_000
"""A backlog is read by tasks, over the links that are cut; what comes after it is few enough to be
fetched with the planning.
"""


@pytest.fixture
def centres() -> Iterator[tuple[tuple[Bus, Cutter], tuple[Bus, Cutter]]]:
    """Where rows come from and where they go; each with the line to it."""
    with (
        EmbeddedRedis() as one,
        EmbeddedRedis() as other,
        site(one.url) as source,
        site(other.url) as target,
        cutter(source.port) as there,
        cutter(target.port) as back,
    ):
        yield (Bus(one), there), (Bus(other), back)


def test_federated_source_to_federated_sink_is_exactly_once_while_both_links_are_cut(
    centres: tuple[tuple[Bus, Cutter], tuple[Bus, Cutter]], workshop: DriverProcess, tmp_path: Path
) -> None:
    (source, there), (target, back) = centres
    source.create("in")
    chance = random.Random(7)
    done = threading.Event()
    cuts = 0

    def cut() -> None:
        nonlocal cuts
        while not done.wait(chance.uniform(0.1, 0.5)):
            chance.choice((there, back)).cut()
            cuts += 1

    def arrived(many: int) -> bool:
        assert workshop.error == ""
        return target.count("out") >= many

    def where(line: Cutter) -> dict[str, str]:
        return {"federation.url": f"dc=ws://127.0.0.1:{line.port}/bus", "federation.secret": SECRET}

    values = [b"%07d" % i + b"x" * chance.randrange(200) for i in range(ROWS)]
    source.push("in", values[:BACKLOG])
    reading = {**where(there), "subscribe": "in", "minPartitions": "2"}
    workshop.start(
        checkpoint=str(tmp_path / "c"),
        source=reading,
        sink={**where(back), "queue": "out"},
        change="plain",
        mark="",
    )
    thread = threading.Thread(target=cut)
    thread.start()
    try:
        wait_until(partial(arrived, BACKLOG), what="the backlog arrives")
        for at in range(BACKLOG, ROWS, 2_500):
            source.push("in", values[at : at + 2_500])
            wait_until(partial(arrived, at + 2_500), what="rows arrive")
    finally:
        done.set()
        thread.join()
    assert target.values("out") == values
    assert cuts > 5
    wait_until(lambda: source.count("in") == 0, what="everything is acknowledged")
    assert target.values("out") == values
    workshop.stop()
