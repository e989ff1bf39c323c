"""Which state of Redis is older than the note of a sink, and which is not."""

from __future__ import annotations

import pytest

from busmq_spark.writing.sink import StagedList
from busmq_spark.writing.sink_rollback import (
    RECORD_EXPIRES_MS,
    CommittedBatch,
    SinkState,
    known_instead,
    lists_digest,
)

LISTS = [
    StagedList("a", 0, "a:stage:1", ((2, 1),), made=7),
    StagedList("b", 0, "b:stage:1", ((1, 1),), made=7),
    StagedList("empty", 0, "c:stage:1", (), made=7),
]
NOTED = CommittedBatch.of("sink", 5, LISTS, 1_000)
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
        (SinkState(5, "another", 0, DONE), "another batch 5"),
        (SinkState(5, DIGEST, 0, ("5:done", "4:done;3;z")), "batch 4 in queue 'b'"),
        (SinkState(5, DIGEST, 0, ("5:0:1;7;x", "")), "a part of batch 5 in queue 'a'"),
    ],
)
def test_a_state_that_lacks_the_noted_batch_is_older(state: SinkState, known: str) -> None:
    assert known_instead(NOTED, state, 2_000) == known


def test_a_record_may_be_gone_when_it_has_expired() -> None:
    gone = SinkState(-1, "", 0, ("", ""))
    assert known_instead(NOTED, gone, 1_000 + RECORD_EXPIRES_MS - 1)
    assert not known_instead(NOTED, gone, 1_000 + RECORD_EXPIRES_MS)


def test_the_text_of_a_note_never_changes() -> None:
    text = (
        '{"v":1,"sink":"sink","batch":5,"digest":"' + DIGEST + '","made":7,"at":1000,'
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
