"""A batch of Spark 4.0, which does not show the checkpoint, planned while a link comes and goes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from busmq_spark.errors import LinkLost
from busmq_spark.reading.batch_planner import BatchPlanner
from busmq_spark.spark.read.stream_reader import WAITS_FOR_LINKS_REASON
from tests.spark.conftest import Bus
from tests.spark.engine import Engine
from tests.spark.links import SOURCES, Centre, gather, ids
from tests.support import PATIENCE_S, wait_until

pytestmark = pytest.mark.only(
    "python", reason="only the Python source reads over links of federation"
)


def test_a_link_that_is_reached_again_while_a_blind_batch_is_planned_keeps_its_position(
    linked: Callable[..., Engine],
    buses: dict[str, Bus],
    centres: dict[str, Centre],
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was planned without it must not pass for the whole: the checkpoint would lose its
    position, and its messages would come again.
    """
    for bus in buses.values():
        bus.fill(queue, 2)
    query = linked(queue, ack="none")
    query.before_42 = True
    gather(query, dict.fromkeys(SOURCES, 2))
    query.restart()
    for bus in buses.values():
        bus.fill(queue, 2, first=3)

    plan = BatchPlanner.plan

    def planned(*args: Any, **named: Any) -> Any:
        found = plan(*args, **named)
        if centres["eu"].down:
            centres["eu"].down = False
            wait_until(
                lambda: not query.reader._planning.stream_queues.store.unavailable,
                what="the link is reached again",
            )
        return found

    monkeypatch.setattr(BatchPlanner, "plan", planned)
    centres["eu"].down = True
    assert ids(gather(query, {"eu": 2}), "eu") == [3, 4]


def test_a_query_that_waits_for_a_link_before_its_first_batch_says_so_once(
    linked: Callable[..., Engine],
    buses: dict[str, Bus],
    centres: dict[str, Centre],
    queue: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for bus in buses.values():
        bus.fill(queue, 2)
    query = linked(queue)
    query.before_42 = True
    centres["eu"].down = True
    with ThreadPoolExecutor() as pool:
        first = pool.submit(query.step)
        wait_until(
            lambda: any(WAITS_FOR_LINKS_REASON in text for text in caplog.messages),
            what="the warning",
        )
        tried = len(centres["eu"].asked)
        wait_until(lambda: len(centres["eu"].asked) > tried + 3, what="it goes on trying")
        centres["eu"].down = False
        rows = first.result(timeout=PATIENCE_S) or []
    assert {source: ids(rows, source) for source in SOURCES} == {
        source: [1, 2] for source in SOURCES
    }
    assert [text.partition(" (")[0] for text in caplog.messages if "link" in text] == [
        "link 'eu' cannot be reached",
        WAITS_FOR_LINKS_REASON,
        "link 'eu' is reached again; its queues go on where they were",
    ]


def test_with_on_unavailable_fail_it_does_not_wait(
    linked: Callable[..., Engine], centres: dict[str, Centre], queue: str
) -> None:
    query = linked(queue, onUnavailable="fail")
    query.before_42 = True
    centres["eu"].down = True
    with pytest.raises(LinkLost, match="link 'eu': the test took it away"):
        query.step()
    centres["eu"].down = False
