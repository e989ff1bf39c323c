"""Errors are also of Python's own kinds, so that a program needs no class of ours to catch them."""

from __future__ import annotations

import pickle

import pytest

from busmq_spark.errors import (
    BusError,
    FederationLost,
    LinkLost,
    MirrorTimeout,
    QueueFull,
    RequestTimeout,
)
from busmq_spark.errors.bus import JobTimeout, OutboxWaits, WorkTimeout
from busmq_spark.errors.redis import WritesPaused

LOST = [
    LinkLost(url="redis://h", reason="refused"),
    FederationLost(url="wss://h", reason="refused"),
    WritesPaused(url="redis://h", reason="NOREPLICAS"),
]
LATE = [
    RequestTimeout(service="s", timeout_s=0.02),
    JobTimeout(job="1", queue="q", missing="g", timeout_s=1, jobs=["1"]),
    WorkTimeout(what="job 1", group="g", queue="q", timeout_s=1),
    OutboxWaits(path="p", waiting=1, why=""),
    MirrorTimeout(origin="redis://h", timeout_s=1),
]


@pytest.mark.parametrize("error", LOST, ids=lambda each: type(each).__name__)
def test_a_lost_link_is_a_connection_error(error: BusError) -> None:
    assert isinstance(error, ConnectionError)
    assert not isinstance(error, TimeoutError)


@pytest.mark.parametrize("error", LATE, ids=lambda each: type(each).__name__)
def test_what_was_not_done_in_time_is_a_timeout_error(error: BusError) -> None:
    assert isinstance(error, TimeoutError)


@pytest.mark.parametrize("error", [*LOST, *LATE], ids=lambda each: type(each).__name__)
def test_such_an_error_pickles_whole(error: BusError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.details) == (type(error), str(error), error.details)
    assert str(error).startswith(f"[{error.code}] ")


def test_a_full_queue_of_a_bus_speaks_of_no_option_of_a_sink() -> None:
    error = QueueFull(queue="q", maxsize=3, left=1, waited="")
    assert "fullTimeoutMs" not in str(error)
    assert "fullTimeoutMs" in QueueFull.remedy
