"""Which state of Redis is older than the note of a sink, and which is not."""

from __future__ import annotations

import pytest

from busmq_spark.writing.sink import StagedList
from busmq_spark.writing.sink_rollback import (
    RECORD_EXPIRES_MS,
    CommittedBatch,
    SinkState,
    batch_before,
    known_instead,
    lists_digest,
)

LISTS = [
    StagedList("a", 0, "a:stage:1", ((2, 1),), made=7),
    StagedList("b", 0, "b:stage:1", ((1, 1),), made=7),
    StagedList("empty", 0, "c:stage:1", (), made=7),
]
NOTED = CommittedBatch.of("sink", 5, LISTS, 1_000, before=3)
DIGEST = lists_digest(LISTS)
DONE = ("5:done;7;x", "5:done;7;y")


@pytest.mark.parametrize(
    ("state", "known"),
    [
        (SinkState(5, DIGEST, 0, DONE), ""),
        (SinkState(6, "another", 0, DONE), ""),
        (SinkState(9, "another", 0, ("9:0:3;8;", "6:done")), ""),
        (SinkState(5, DIGEST, 0, ("", "")), ""),
        (SinkState(-1, "", 8, ("", "")), ""),
        (SinkState(-1, "", 7, ("", "")), "no batch of it"),
        (SinkState(4, "another", 0, DONE), "batch 4"),
        (SinkState(3, "another", 0, DONE), ""),
        (SinkState(3, "another", 0, ("5:done;7;x", "5:done;6;y")), "batch 3"),
        (SinkState(3, "another", 0, ("5:done;7;x", "5:0:1;7;y")), "batch 3"),
        (SinkState(3, "another", 0, ("5:done;7;x", "")), "batch 3"),
        (SinkState(5, "another", 0, DONE), "another batch 5"),
        (SinkState(5, DIGEST, 0, ("5:done", "4:done;3;z")), "batch 4 in queue 'b'"),
        (SinkState(5, DIGEST, 0, ("5:0:1;7;x", "")), "a part of batch 5 in queue 'a'"),
    ],
)
def test_a_state_that_lacks_the_noted_batch_is_older(state: SinkState, known: str) -> None:
    assert known_instead(NOTED, state, 2_000, 6) == known


def test_a_record_may_be_gone_when_it_has_expired() -> None:
    gone = SinkState(-1, "", 0, ("", ""))
    assert known_instead(NOTED, gone, 1_000 + RECORD_EXPIRES_MS - 1, 6)
    assert not known_instead(NOTED, gone, 1_000 + RECORD_EXPIRES_MS, 6)


@pytest.mark.parametrize(
    ("state", "known"),
    [
        (SinkState(3, "another", 0, ("3:done;7;x", "")), ""),
        (SinkState(5, "another", 0, ("5:0:1;7;x", "")), ""),
        (SinkState(2, "another", 0, ("2:done;7;x", "")), "batch 2"),
        (SinkState(-1, "", 0, ("", "")), "no batch of it"),
    ],
)
def test_a_noted_batch_that_comes_again_needs_the_one_before_it(
    state: SinkState, known: str
) -> None:
    assert known_instead(NOTED, state, 2_000, 5) == known


def test_nothing_is_expected_for_the_first_batch_or_one_before_the_note() -> None:
    gone = SinkState(-1, "", 0, ("", ""))
    first = CommittedBatch.of("sink", 5, LISTS, 1_000)
    assert not known_instead(first, gone, 2_000, 5)
    assert not known_instead(NOTED, gone, 2_000, 3)


@pytest.mark.parametrize(
    ("recorded", "batch", "before"), [(-1, 6, -1), (5, 6, 5), (3, 6, 3), (5, 5, 3), (6, 6, 5)]
)
def test_a_note_has_the_batch_that_was_on_record_before_it(
    recorded: int, batch: int, before: int
) -> None:
    assert batch_before(NOTED, SinkState(recorded, "", 0, ()), batch) == before


def test_the_text_of_a_note_never_changes() -> None:
    text = (
        '{"v":1,"sink":"sink","batch":5,"before":3,"digest":"' + DIGEST + '","made":7,"at":1000,'
        '"queues":["a","b"]}'
    )
    assert NOTED.encode() == text
    assert CommittedBatch.decode(text) == NOTED


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "{}", NOTED.encode().replace(":5,", ':"5",'), '{"v":2}', '{"v":1}'],
)
def test_another_text_is_no_note(text: str) -> None:
    with pytest.raises(ValueError, match=r"no note|version|JSON|Expecting"):
        CommittedBatch.decode(text)
