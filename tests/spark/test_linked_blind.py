"""A batch of Spark 4.0, which does not show the checkpoint, planned while a link comes and goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from busmq_spark.core.flow import run_sync
from busmq_spark.spark import planning
from tests.spark.conftest import Bus
from tests.spark.engine import Engine
from tests.spark.links import SOURCES, Centre, gather, ids
from tests.support import wait_until

pytestmark = pytest.mark.only("python", reason="only the Python source reads over links of federation")


def test_a_link_that_is_reached_again_while_a_blind_batch_is_planned_keeps_its_position(
    linked: Callable[..., Engine], buses: dict[str, Bus], centres: dict[str, Centre], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was planned without it must not pass for the whole: the checkpoint would lose its position, and its messages would come again."""
    for bus in buses.values():
        bus.fill(queue, 2)
    query = linked(queue, ack="none")
    query._before_42 = True
    gather(query, dict.fromkeys(SOURCES, 2))
    query.restart()
    for bus in buses.values():
        bus.fill(queue, 2, first=3)

    def planned(flow: Any, execute: Any) -> Any:
        found = run_sync(flow, execute)
        if centres["eu"].down:
            centres["eu"].down = False
            wait_until(lambda: not query.reader._planning.reader_queues.store.unavailable, what="the link is reached again")
        return found

    monkeypatch.setattr(planning, "run_sync", planned)
    centres["eu"].down = True
    assert ids(gather(query, {"eu": 2}), "eu") == [3, 4]
