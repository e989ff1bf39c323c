"""What a process makes of answers that are older than what it knows by then: nothing is taken for lost that was copied meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from busmq_spark.core.mirror import Span
from busmq_spark.metrics import Metrics
from busmq_spark.mirror.book import MirrorBook
from busmq_spark.mirror.settings import MirrorSettings
from busmq_spark.mirror.status import MirrorMetrics
from busmq_spark.mirror.windows import MirroredQueue, Window, WindowRows, behind


class Here:
    """Servers that have nothing to say."""

    masked = "redis://here"

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: {}


@pytest.fixture
def book() -> MirrorBook:
    settings = MirrorSettings(origin="redis://there", patterns=("q",))
    made = MirrorBook(settings, Here(), MirrorMetrics(Metrics()), lambda *_: "")  # type: ignore[arg-type]
    made.queues["q"] = MirroredQueue("q", begun=True, born="b", last=100, mark="of 100", seen=100, planned=100)
    return made


def span(last_id: int, after_mark: str) -> Span:
    return Span(60, "b", 0, last_id, 1, 0, after_mark, "", "")


def test_a_look_from_before_more_was_copied_finds_nothing_lost_or_other(book: MirrorBook) -> None:
    book.looked({"q": span(60, "of 50")}, {}, {"q": 50})
    assert book.queues["q"].stopped is None
    assert book.queues["q"].behind == 0


def test_one_that_is_up_to_date_does(book: MirrorBook) -> None:
    book.looked({"q": span(60, "")}, {}, {"q": 100})
    assert "has lost ids 61..100" in str(book.queues["q"].stopped)
    book.looked({"q": span(120, "of another")}, {}, {"q": 100})
    assert "are other messages" in str(book.queues["q"].stopped)


def test_a_rollback_is_found_also_when_more_was_copied_meanwhile(book: MirrorBook) -> None:
    book.looked({"q": span(40, "")}, {}, {"q": 50})
    assert "has lost ids 41..100" in str(book.queues["q"].stopped)


def test_counters_from_before_do_not_hide_what_is_known_to_be_there(book: MirrorBook) -> None:
    book.look = False
    book.queues["q"].seen = 130
    book.count({"q": 60}, {"q": 50})
    assert (book.look, book.queues["q"].behind) == (False, 30)
    book.count({"q": 40}, {"q": 50})
    assert book.look


def test_of_what_was_read_the_rest_is_taken_and_compared_with_the_message_copied_last() -> None:
    rows = WindowRows(Window("q", "b", 10, 0, 13), span(13, "of 10"), 13, 10, [11, 12, 13], [b"11", b"12", b"13"])
    assert behind(rows, 10).after_mark == "of 10"
    found = behind(rows, 12)
    assert (rows.ids, rows.values, rows.after) == ([13], [b"13"], 12)
    assert found.after_mark not in ("", "of 10")
