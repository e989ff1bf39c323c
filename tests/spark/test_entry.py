"""Where a query enters a queue that holds messages: what its acks would delete unread is an error
that says how many.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from busmq_spark.errors import ConfigError, UnreadBacklog
from tests.spark.conftest import Bus
from tests.spark.engine import Engine, through_json

MakeEngine = Callable[..., Engine]


def ids(batches: list[list[tuple[str, int, bytes]]]) -> list[int]:
    return [id for rows in batches for _, id, _ in rows]


@pytest.fixture
def read(bus: Bus, queue: str) -> dict[str, str]:
    return {"redis.url": bus.url, "subscribe": queue, "idlePollMs": "1"}


@pytest.mark.needs("start")
@pytest.mark.parametrize(
    ("start", "count"), [("latest", 5), ('{"%s": 3}', 3), ('{"%s": "latest"}', 5)]
)
@pytest.mark.parametrize("own", [{}, {"subscription": "s"}], ids=["alone", "subscription"])
def test_a_start_behind_unread_messages_is_an_error_and_deletes_nothing(
    bus: Bus, engine: MakeEngine, read: dict[str, str], start: str, count: int, own: dict[str, str]
) -> None:
    bus.fill(queue := read["subscribe"], 5)
    query = engine({**read, **own, "startingOffsets": start.replace("%s", queue)})
    said = (
        rf"'{queue}' holds {count} unread messages up to id {count}, where"
        r" startingOffsets=(latest|3) begins; .*discardBacklog=true"
    )
    for _ in range(2):
        with pytest.raises(UnreadBacklog, match=said) as failed:
            query.step()
        assert failed.value.details["queue"] == queue
        assert int(failed.value.details["count"]) == count
        query.restart()
    assert query.planned == []
    query.restart(startingOffsets="earliest")
    assert ids(query.drain()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("before_42", [False, True])
def test_discard_backlog_deletes_it_with_a_warning(
    bus: Bus,
    engine: MakeEngine,
    read: dict[str, str],
    queue: str,
    caplog: pytest.LogCaptureFixture,
    before_42: bool,
) -> None:
    bus.fill(queue, 5)
    query = engine(
        {**read, "startingOffsets": "latest", "discardBacklog": "true"}, before_42=before_42
    )
    assert query.drain() == []
    assert bus.ids(queue) == []
    [warning] = [text for text in caplog.messages if "discardBacklog" in text]
    assert f"'{queue}': 5 unread messages up to id 5 will be deleted" in warning


def test_ack_none_deletes_nothing_so_it_may_begin_anywhere(
    bus: Bus, engine: MakeEngine, read: dict[str, str], queue: str
) -> None:
    bus.fill(queue, 5)
    query = engine({**read, "startingOffsets": "latest", "ack": "none"})
    assert query.drain() == []
    bus.fill(queue, 1, first=6)
    assert ids(query.drain()) == [6]
    assert bus.ids(queue) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("start", ["latest", '{"%s": 5}'])
def test_where_everything_before_the_start_has_left_nothing_is_deleted(
    bus: Bus, engine: MakeEngine, read: dict[str, str], start: str, more: int
) -> None:
    bus.fill(queue := read["subscribe"], 5)
    first = engine(read)
    first.drain()
    first.kill()
    if start == "latest":
        more = 0
    else:
        bus.fill(queue, more, first=6)
    query = engine({**read, "startingOffsets": start.replace("%s", queue)})
    assert ids(query.drain()) == [6] * more


@pytest.mark.needs("limits")
def test_what_waits_for_another_subscription_stays_so_a_new_one_may_begin_behind_it(
    bus: Bus, engine: MakeEngine, read: dict[str, str], queue: str
) -> None:
    bus.fill(queue, 5)
    slow = engine({**read, "subscription": "slow", "maxMessagesPerTrigger": "2"})
    assert len(slow.step() or []) == 2
    late = engine({**read, "subscription": "late", "startingOffsets": "latest"})
    assert late.drain() == []
    bus.fill(queue, 1, first=6)
    assert ids(late.drain()) == [6]
    assert ids(slow.drain()) == [3, 4, 5, 6]
    assert bus.ids(queue) == []


@pytest.mark.needs("limits")
def test_a_subscription_that_has_messages_waiting_does_not_skip_them_with_another_checkpoint(
    bus: Bus, engine: MakeEngine, read: dict[str, str], queue: str
) -> None:
    bus.fill(queue, 5)
    slow, quick = (
        engine({**read, "subscription": name, "maxMessagesPerTrigger": "2"})
        for name in ("slow", "quick")
    )
    slow.step()
    slow.step()
    slow.kill()
    quick.drain()
    assert bus.ids(queue) == [3, 4, 5]
    with pytest.raises(UnreadBacklog, match="holds 3 unread messages up to id 5"):
        engine({**read, "subscription": "slow", "startingOffsets": "latest"}).step()
    quick.kill()
    with pytest.raises(UnreadBacklog, match="holds 2 unread messages up to id 4"):
        engine({**read, "subscription": "slow", "startingOffsets": json.dumps({queue: 4})}).step()


def test_latest_of_an_empty_or_new_queue_is_no_error(
    bus: Bus, engine: MakeEngine, read: dict[str, str], queue: str
) -> None:
    query = engine({**read, "startingOffsets": "latest"})
    assert query.drain() == []
    bus.fill(queue, 2)
    assert ids(query.drain()) == [1, 2]
    assert bus.ids(queue) == []


@pytest.mark.needs("limits")
def test_what_comes_while_a_query_enters_is_neither_passed_over_nor_deleted(
    bus: Bus, engine: MakeEngine, read: dict[str, str], queue: str
) -> None:
    query = engine({**read, "startingOffsets": "latest", "createQueue": "false"})
    bus.attach(queue)
    reader = query.reader
    end = through_json(reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit()))
    query.kill()
    bus.fill(queue, 3)
    query.planned, query.committed = [end], 0
    assert ids(query.drain()) == [1, 2, 3]
    assert bus.ids(queue) == []


def test_a_checkpoint_counts_and_not_the_start(
    bus: Bus, engine: MakeEngine, read: dict[str, str], queue: str
) -> None:
    query = engine({**read, "startingOffsets": "latest"})
    query.drain()
    bus.fill(queue, 5)
    query.restart()
    assert ids(query.drain()) == [1, 2, 3, 4, 5]


def test_a_start_above_the_last_id_says_what_to_do(
    bus: Bus, engine: MakeEngine, read: dict[str, str], queue: str
) -> None:
    bus.fill(queue, 5)
    query = engine({**read, "startingOffsets": json.dumps({queue: 6})})
    with pytest.raises(
        ConfigError,
        match=(
            f"'{queue}' is read up to id 6, but its last id is 5. Name that id or a smaller one, or"
            " .*latest"
        ),
    ):
        query.step()


@pytest.mark.only("python", reason="no Spark hides it from Java")
def test_a_spark_that_hides_the_checkpoint_refuses_before_the_first_batch_is_read(
    bus: Bus, engine: MakeEngine, read: dict[str, str], queue: str
) -> None:
    """Python before 4.2: whether startingOffsets counts is known only when Spark asks for the tasks
    of the batch.
    """
    bus.fill(queue, 5)
    query = engine({**read, "startingOffsets": "latest"}, before_42=True)
    for start, said in (
        ("latest", "startingOffsets=latest"),
        ("latest", "startingOffsets=latest"),
        ("earliest", "the checkpoint"),
    ):
        query.restart(
            startingOffsets=start
        )  # the batch is in the checkpoint: another start does not change it
        with pytest.raises(
            UnreadBacklog, match=f"holds 5 unread messages up to id 5, where {said} begins"
        ):
            query.step()
    assert bus.ids(queue) == [1, 2, 3, 4, 5]
    query.restart(startingOffsets="latest", discardBacklog="true")
    assert query.drain() == []
    bus.fill(queue, 2, first=6)
    assert ids(query.drain()) == [6, 7]
    query.restart(discardBacklog="false")
    bus.fill(queue, 2, first=8)
    assert ids(query.drain()) == [8, 9]


@pytest.mark.parametrize("before_42", [False, True])
def test_a_first_batch_that_is_read_again_begins_where_it_began_whatever_others_acked(
    bus: Bus, engine: MakeEngine, read: dict[str, str], queue: str, before_42: bool
) -> None:
    bus.fill(queue, 6)
    daily = engine({**read, "subscription": "daily"}, before_42=before_42)
    daily.step()
    late = engine(
        {**read, "subscription": "late", "startingOffsets": json.dumps({queue: 3})},
        before_42=before_42,
    )
    late.step("read")
    daily.reader.commit(daily.planned[-1])
    late.restart()
    assert [id for _, id, _ in late.step() or []] == [4, 5, 6]
