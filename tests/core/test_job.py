"""How jobs are written: fields, references and outcomes, and what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import ConfigError, MessageRefused
from busmq_spark.groups import job
from busmq_spark.queue.keys import JobKeys

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
)


@given(st.binary() | JSON)
def test_a_field_is_read_as_it_was_written(value: object) -> None:
    found = job.decode_field("f", job.encode_field("f", value))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("stored", [b"", b"x1", b"j", b"j{", b"J1"])
def test_what_we_do_not_write_is_refused(stored: bytes) -> None:
    with pytest.raises(MessageRefused, match="field 'f' of a job begins with"):
        job.decode_field("f", stored)


def test_a_field_that_cannot_be_stored_is_named() -> None:
    for value in (object(), float("nan"), {1, 2}, "\ud800"):
        with pytest.raises(MessageRefused, match="field 'f' of a job cannot be stored"):
            job.encode_field("f", value)
    with pytest.raises(
        MessageRefused,
        match=r"field 'f' of a job has 629145600 bytes; Redis takes less than 536870912 \(512 MB\)",
    ):
        job.encode_field("f", bytes(600 * 1024 * 1024))


@pytest.mark.parametrize("id", ["", "a:b", "a b", "x" * 101, None, 3, b"a", "a\n", "{a}"])
def test_what_can_be_no_id_is_refused(id: object) -> None:
    with pytest.raises(ConfigError, match="the id of the job is"):
        job.check_job(id)


@pytest.mark.parametrize("name", ["", "done", ":x", "a\n", "a\x00", "x" * 201, None, 3])
def test_what_can_be_no_field_is_refused(name: object) -> None:
    with pytest.raises(ConfigError, match="the name of the field is"):
        job.check_field(name)


def test_names_near_the_borders_are_taken() -> None:
    for name in ("done2", "undone", "a:done", "é", "x" * 200):
        assert job.check_field(name) == name


@given(
    st.from_regex(r"\A[A-Za-z0-9_-]{1,100}\Z"),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from(["", "concat.done"]),
)
def test_a_reference_is_read_as_it_was_written(id: str, client: str, done: str) -> None:
    assert job.decode_reference(job.reference_encoder(client, done)(id), "concat") == (
        id,
        client,
        done,
    )


@pytest.mark.parametrize(
    "done",
    ["payments", "other.done", "concat.done ", "concat.done.done", "", None, 3, ["concat.done"]],
)
def test_a_message_does_not_choose_the_queue_of_its_outcome(done: object) -> None:
    for text in (
        json.dumps({"job": "a", "from": "x", "done": done}),
        json.dumps({"job": "a", "done": done, "from": "x"}, separators=(",", ":")),
    ):
        assert job.decode_reference(text.encode(), "concat") == ("a", "x", "")


@pytest.mark.parametrize(
    "value",
    [b"", b"text", b"{}", b"[]", b'{"job":3}', b'{"job":"a:b"}', b"\xff", b"[" * 100_000, b'"job"'],
)
def test_a_message_that_names_no_job_is_refused(value: bytes) -> None:
    with pytest.raises(MessageRefused, match="names no job; expected JSON"):
        job.decode_reference(value, "concat")


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"{}",
        b"[]",
        b'{"job":"a","queue":"q","group":"g","life":"l","tries":"x","message":1,"ms":2,"ok":true}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_outcome_is_refused(stored: bytes) -> None:
    with pytest.raises(MessageRefused, match="is no outcome of a job"):
        job.decode_outcome(stored)


def test_a_publication_has_an_outcome_a_line() -> None:
    texts = [
        f'{{"ms":5,"job":"{name}","queue":"q","group":"g","life":"l","ok":false,"error":"two\\nlines","tries":1,"message":{number}}}'.encode()
        for number, name in enumerate("ab", 1)
    ]
    found = [job.decode_outcome(each) for each in job.split_publication(b"\n".join(texts))]
    assert [(each.job, each.message, each.error, each.ok) for each in found] == [
        ("a", 1, "two\nlines", False),
        ("b", 2, "two\nlines", False),
    ]


def test_fields_of_many_jobs_go_in_parts() -> None:
    keys = [JobKeys(str(number)) for number in range(1500)]
    parts = list(job.save_fields([(each, {"a": (b"j1", 5), "b": (b"b", 5)}) for each in keys]))
    assert [len(part) for part in parts] == [1000, 1000, 1000]
    large = list(job.save_fields([(each, {"a": (bytes(3 * 1024 * 1024), 5)}) for each in keys[:7]]))
    assert [len(part) for part in large] == [3, 3, 1]
