"""A subscription that comes after others have acked: what left the queue before is gone for it, and
that is said.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from busmq_spark.errors import ConfigError
from tests.conftest import Fresh
from tests.spark.conftest import Bus
from tests.spark.engine import Engine

MakeEngine = Callable[..., Engine]


def first_reads(bus: Bus, engine: MakeEngine, queue: str, rows: int) -> None:
    """Another subscription reads and acks everything."""
    bus.fill(queue, rows)
    first = engine({"redis.url": bus.url, "subscribe": queue, "subscription": "first"})
    assert len(first.drain()[0]) == rows
    assert bus.ids(queue) == []


def test_a_late_subscription_is_warned_about_the_messages_that_are_gone_for_it(
    bus: Bus, engine: MakeEngine, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    first_reads(bus, engine, queue, 5)
    late = engine({"redis.url": bus.url, "subscribe": queue, "subscription": "late"})
    assert late.drain() == []
    [text] = [text for text in caplog.messages if "subscription 'late'" in text]
    assert (
        f"queue '{queue}': 5 messages (ids 1..5) had left it before subscription 'late' came"
        in text
    )
    assert "first" in text
    assert "busmq subscribe" in text
    late.kill()
    late.restart()
    late.drain()
    assert (
        len([text for text in caplog.messages if "subscription 'late'" in text]) == 1
    )  # it is registered by now


@pytest.mark.parametrize("starting", ["earliest", '{"%s": "earliest"}'])
def test_a_late_subscription_that_asks_for_the_first_message_is_refused(
    bus: Bus, engine: MakeEngine, queue: str, starting: str
) -> None:
    first_reads(bus, engine, queue, 5)
    late = engine(
        {
            "redis.url": bus.url,
            "subscribe": queue,
            "subscription": "late",
            "startingOffsets": starting.replace("%s", queue),
        }
    )
    for _ in range(2):  # the refused one is not registered
        with pytest.raises(
            ConfigError,
            match=(
                r"5 messages \(ids 1\.\.5\) had left it .* startingOffsets=earliest asks for them"
            ),
        ):
            late.step()
        late.kill()


def test_a_late_subscription_with_data_loss_allowed_goes_on_with_a_warning(
    bus: Bus, engine: MakeEngine, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    first_reads(bus, engine, queue, 5)
    options = {
        "redis.url": bus.url,
        "subscribe": queue,
        "subscription": "late",
        "startingOffsets": "earliest",
        "failOnDataLoss": "false",
    }
    assert engine(options).drain() == []
    assert any("5 messages (ids 1..5) had left it" in text for text in caplog.messages)


def test_a_subscription_that_misses_nothing_is_not_warned_about(
    bus: Bus, engine: MakeEngine, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    whole, drained = fresh("whole"), fresh("drained")
    bus.fill(whole, 3)
    engine({"redis.url": bus.url, "subscribe": whole, "subscription": "first"}).step()
    bus.fill(drained, 3)
    reader = engine({"redis.url": bus.url, "subscribe": drained})
    reader.drain()
    reader.kill()
    for queue in (whole, drained):
        engine(
            {
                "redis.url": bus.url,
                "subscribe": queue,
                "subscription": "late",
                "startingOffsets": "earliest",
            }
        ).drain()
    assert [text for text in caplog.messages if "had left it" in text] == []
