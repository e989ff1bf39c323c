"""What a process makes of answers that are older than what it knows by then: nothing is taken for
lost that was copied meanwhile.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from busmq_spark.metrics import Metrics
from busmq_spark.mirror.copy_planning import (
    CopyRange,
    CopyRangeReadResult,
    EncodedMessages,
    MirroredQueue,
    drop_copied_rows,
)
from busmq_spark.mirror.mirror_copier import MirrorCopier
from busmq_spark.mirror.origin_reader import LookedAtQueue
from busmq_spark.mirror.settings import MirrorMetrics, MirrorSettings
from busmq_spark.reading.reader_operations import fingerprint
from busmq_spark.writing.mirror import OriginQueueState


class Here:
    """Servers that have nothing to say."""

    masked_url = "redis://here"

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: {}


@pytest.fixture
def copier() -> MirrorCopier:
    settings = MirrorSettings(origin="redis://there", patterns=("q",))
    made = MirrorCopier(settings, Here(), MirrorMetrics(Metrics()), lambda *_: "")  # type: ignore[arg-type]
    made.queues["q"] = MirroredQueue(
        "q", begun=True, born="b", last=100, mark="of 100", seen=100, planned=100
    )
    return made


def span(last_id: int, after_mark: str) -> OriginQueueState:
    return OriginQueueState(60, "b", 0, last_id, 1, 0, after_mark, "", "")


def test_a_look_from_before_more_was_copied_finds_nothing_lost_or_other(
    copier: MirrorCopier,
) -> None:
    copier.on_spans({"q": span(60, "of 50")}, {}, {}, {"q": LookedAtQueue(50)})
    assert copier.queues["q"].stopped is None
    assert copier.queues["q"].behind == 0


def test_one_that_is_up_to_date_does(copier: MirrorCopier) -> None:
    copier.on_spans({"q": span(60, "")}, {}, {}, {"q": LookedAtQueue(100)})
    assert "has lost ids 61..100" in str(copier.queues["q"].stopped)
    copier.on_spans({"q": span(120, "of another")}, {}, {}, {"q": LookedAtQueue(100)})
    assert "are other messages" in str(copier.queues["q"].stopped)


def test_a_rollback_is_found_also_when_more_was_copied_meanwhile(copier: MirrorCopier) -> None:
    copier.on_spans({"q": span(40, "")}, {}, {}, {"q": LookedAtQueue(50)})
    assert "has lost ids 41..100" in str(copier.queues["q"].stopped)


def test_counters_from_before_do_not_hide_what_is_known_to_be_there(copier: MirrorCopier) -> None:
    copier.look = False
    copier.queues["q"].seen = 130
    copier.count({"q": 60}, {"q": 50})
    assert (copier.look, copier.queues["q"].behind) == (False, 30)
    copier.count({"q": 40}, {"q": 50})
    assert copier.look


def test_of_what_was_read_the_rest_is_taken_and_compared_with_the_message_copied_last() -> None:
    parts = [
        EncodedMessages.of(11, pa.array([b"11"])),
        EncodedMessages.of(12, pa.array([b"12", b"13"])),
    ]
    rows = CopyRangeReadResult(CopyRange("q", "b", 10, 0, 13), span(13, "of 10"), 13, 10, parts)
    assert drop_copied_rows(rows, 10).after_mark == "of 10"
    found = drop_copied_rows(rows, 12)
    assert (rows.count, rows.last, rows.after, rows.mark(12), rows.mark(13)) == (
        1,
        13,
        12,
        "",
        fingerprint(b"13"),
    )
    assert found.after_mark == fingerprint(b"12")


def test_where_what_was_copied_meanwhile_was_not_read_its_fingerprint_is_not_known() -> None:
    rows = CopyRangeReadResult(
        CopyRange("q", "b", 10, 0, 13),
        span(13, "of 10"),
        13,
        10,
        [EncodedMessages.of(13, pa.array([b"13"]))],
    )
    assert drop_copied_rows(rows, 12).after_mark == ""
    assert rows.count == 1


def test_as_long_as_nobody_knows_how_long_values_are_one_window_is_under_way(
    copier: MirrorCopier,
) -> None:
    queue = copier.queues["q"]
    copier.count({"q": 5_000}, {"q": 100})
    [[window]] = [copier.plan(0.0)]
    assert (window.after, window.upto) == (100, 1_100)
    assert copier.plan(0.0) == []
    copier.append(
        [
            CopyRangeReadResult(
                window,
                span(5_000, "of 100"),
                1_100,
                100,
                [EncodedMessages.of(1_100, pa.array([b"x" * 1_000]))],
                1_000,
            )
        ]
    )
    assert [(each.after, each.rows) for _ in range(2) for each in copier.plan(0.0)] == [
        (100, 3_145),
        (3_245, 1_755),
    ]
    assert queue.row_bytes == 1_000


def test_short_windows_of_many_queues_are_read_together_as_long_as_their_values_fit_one_call(
    copier: MirrorCopier,
) -> None:
    copier.queues = {
        name: MirroredQueue(name, begun=True, born="b", seen=10, row_bytes=100_000.0)
        for name in [f"large-{n}" for n in range(8)] + ["small"]
    }
    copier.queues["small"].row_bytes = 10.0
    copier.count(dict.fromkeys(copier.queues, 10), dict.fromkeys(copier.queues, 0))
    calls = [[window.queue for window in copier.plan(0.0)] for _ in range(4)]
    assert calls == [
        ["large-0", "large-1", "large-2", "small"],
        ["large-3", "large-4", "large-5"],
        ["large-6", "large-7"],
        [],
    ]
