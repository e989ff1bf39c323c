"""The record beside a lease: its JSON, its size, what it must not hold, and its damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from busmq_spark.reading.reader_record import (
    RECORD_BYTES,
    BatchMark,
    ReaderRecord,
    describe_reader,
    without_secrets,
)
from busmq_spark.reading.readers import Look, StoredRecord, rate_of, state_of

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "reader-records-v1.json").read_text("utf-8")
)
WHOLE = ReaderRecord(
    kind="query",
    name="orders-to-lake",
    id="ab12",
    query="q-1",
    run="r-1",
    app="app-1",
    ui="http://h:4040",
    checkpoint="/checkpoints/orders",
    host="h",
    pid=7,
    engine="java",
    version="1.2",
    started=1_000,
    at=9_000,
    planned=BatchMark(5_000, 10, 3),
    committed=BatchMark(4_000, 9),
    error="no",
)


def test_a_record_is_read_as_it_was_written() -> None:
    assert ReaderRecord.decode(WHOLE.encode()) == WHOLE
    assert ReaderRecord.decode('{"kind":"query"}') == ReaderRecord(kind="query")
    assert ReaderRecord(kind="tail").encode() == '{"kind":"tail"}', "what is not known is left out"


@pytest.mark.parametrize("case", GOLDEN, ids=[case["what"] for case in GOLDEN])
def test_the_json_is_that_of_the_golden_file(case: dict[str, dict[str, str]]) -> None:
    assert json.loads(ReaderRecord(**case["facts"]).encode()) == case["json"]


@pytest.mark.parametrize("text", ["n" * 300, "\x00\x1b[31m" * 90, '"' * 300, "ü" * 300, "🚌" * 300])
def test_no_text_makes_a_record_longer_than_it_may_be(text: str) -> None:
    made = ReaderRecord(kind="query", name=text, checkpoint=text, ui=text, error=text, host="here")
    found = made.encode()
    assert len(found.encode()) <= RECORD_BYTES
    assert "\x1b" not in found
    read = ReaderRecord.decode(found)
    assert read is not None
    assert (read.kind, read.host) == ("query", "here")


def test_secrets_do_not_enter_a_record() -> None:
    secret = "s3cr3t"
    made = ReaderRecord(
        kind="query",
        name=f"redis://user:{secret}@host:6379",
        checkpoint=f"s3a://key:{secret}@bucket/c?sig={secret}",
        ui=f"https://h/proxy?token={secret}",
        error=f"password={secret} at https://h/a?X-Amz-Signature={secret}",
    )
    assert secret not in made.encode()
    assert without_secrets("s3a://bucket/c") == "s3a://bucket/c"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "7", '{"name":"n"}', '{"kind":7}', "[" * 9999]
)
def test_what_no_reader_has_written_is_no_record(text: str) -> None:
    assert ReaderRecord.decode(text) is None


def test_values_of_other_types_are_left_out() -> None:
    said = {**json.loads(WHOLE.encode()), "pid": "7", "planned": [1, True], "ui": ["x"], "new": 1}
    found = ReaderRecord.decode(json.dumps(said))
    assert found is not None
    assert (found.pid, found.planned, found.ui, found.committed) == (
        None,
        None,
        "",
        WHOLE.committed,
    )


def test_a_reader_is_described_by_its_record_else_by_its_token() -> None:
    token = "ab12|elsewhere|7.1"

    def by_token(_: str) -> str:
        return "process 7 of machine elsewhere"

    assert describe_reader(token, None, by_token) == "process 7 of machine elsewhere"
    assert describe_reader(token, WHOLE, by_token) == (
        "query 'orders-to-lake', process 7 on h, application app-1, http://h:4040"
    )
    here = describe_reader(token, WHOLE, lambda _: "process 7 of this machine")
    assert here.startswith("query 'orders-to-lake', process 7 of this machine, ")


def test_a_stored_field_has_its_looks() -> None:
    value = b'2000:15000:1500:r;1000:5:9;2000:7:9 {"kind":"tail"}'
    found = StoredRecord.parse(b"l:a", value)
    assert (found.seen_ms, found.hold_ms, found.moved_ms, found.below) == (2000, 15000, 1500, True)
    assert found.looks == (Look(1000, 5, 9), Look(2000, 7, 9))
    assert [found.is_present(ms) for ms in (2000, 17_000, 17_001, -70_000)] == [
        True,
        True,
        False,
        False,
    ]
    for damaged in (b"", b"x", b"1:2 {}", b"\xff\xfe", b"1:2:3:;9:9 {}"):
        assert StoredRecord.parse(b"l:a", damaged) == StoredRecord("l:a")


def looks(*lags: int, moves: int = 10) -> list[Look]:
    return [Look(5000 * n, moves * n, moves * n + lag) for n, lag in enumerate(lags)]


@pytest.mark.parametrize(
    ("state", "found", "facts"),
    [
        ("ok", looks(5, 5, 5, 5), {}),
        ("behind", looks(1, 2, 3, 4), {}),
        ("behind", looks(99, 1, 2, 3, 4), {}),
        ("ok", looks(2, 3, 4), {}),
        ("ok", looks(1, 2, 2, 4), {}),
        ("ok", looks(1, 2, 3, 4, moves=0), {}),
        ("stuck", looks(1, 2, 3, 4), {"stuck": True}),
        ("stuck", [], {"stuck": True, "replaying": True}),
        ("replaying", looks(1, 2, 3, 4), {"replaying": True}),
        ("gone", looks(1, 2, 3, 4), {"held": False, "stuck": True}),
        ("paused", [], {"held": False, "paused": True}),
    ],
)
def test_the_state_follows_from_the_looks(
    state: str, found: list[Look], facts: dict[str, bool]
) -> None:
    known = {"held": True, "paused": False, "replaying": False, "stuck": False, **facts}
    assert state_of(found, **known) == state


def test_the_rate_is_that_between_the_first_and_the_last_look() -> None:
    assert rate_of(looks(0, 0, 0)) == 2.0
    assert [rate_of(looks(0)), rate_of([]), rate_of(looks(0, 0, moves=-1))] == [None, None, None]
