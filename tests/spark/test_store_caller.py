"""How long the planner waits for a link: longer for one that was slow, and no longer than that."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from busmq_spark.store import multi_source_store
from busmq_spark.store.multi_source_store import SourceUnavailable, ThreadedStoreCaller
from tests.support import PATIENCE_S, wait_until


class Nothing:
    """A store that is asked nothing."""

    def close(self) -> None:
        pass


def test_a_link_that_was_slow_once_is_waited_for_as_briefly_as_others_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(multi_source_store, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(multi_source_store, "ANSWER_BUDGET_S", PATIENCE_S)
    monkeypatch.setattr(multi_source_store, "MAX_ANSWER_BUDGET_S", 4 * PATIENCE_S)
    made: Any = Nothing
    caller = ThreadedStoreCaller("far", made)
    go_on = threading.Event()
    for doubled in (2 * PATIENCE_S, 4 * PATIENCE_S):
        go_on.clear()
        answer = caller.begin_asking(lambda _: go_on.wait(PATIENCE_S))
        now += doubled / 2
        with pytest.raises(SourceUnavailable):
            answer()
        go_on.set()
        wait_until(lambda: not caller.unavailable, what="the late answer came")
        assert caller._budget_s == doubled
    for _ in range(30):
        assert caller.begin_asking(lambda _: 1)() == 1
    wait_until(lambda: caller._budget_s == PATIENCE_S, what="the budget is what it was")
    caller.close()
