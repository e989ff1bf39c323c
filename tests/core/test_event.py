"""Events as CloudEvents: what is one, what is none, and the bytes of each."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark import Event
from busmq_spark.errors import MessageRefused
from busmq_spark.groups.dead_letter import decode_letter, make_dead_letter
from busmq_spark.groups.shared_group import LeasedMessage

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "cloudevents-v1.json").read_text())
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
some_json = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: (
        st.lists(inner | st.none(), max_size=3)
        | st.dictionaries(texts, inner | st.none(), max_size=3)
    ),
    max_leaves=8,
)
names = st.from_regex(r"x[a-z0-9]{1,9}", fullmatch=True)
some_events = st.builds(
    Event,
    id=texts,
    source=texts,
    type=texts,
    data=st.none() | st.binary(max_size=40) | some_json,
    time=st.none()
    | st.datetimes(timezones=st.timezones()).map(lambda at: at.astimezone().isoformat())
    | st.just("2026-05-01t12:00:00.123456789z"),
    subject=st.none() | texts,
    datacontenttype=st.none() | st.just("application/json"),
    extensions=st.dictionaries(
        names, st.booleans() | st.integers(-(2**31), 2**31 - 1) | texts | st.just(""), max_size=3
    ),
)


def event(**changes: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", **changes}


@given(some_events)
def test_what_is_encoded_is_decoded_as_the_same_event(given_: Event) -> None:
    assert Event.decode(given_.encode()) == given_


@given(
    st.binary(max_size=60)
    | st.dictionaries(st.sampled_from(["id", "type", "x"]), st.none() | texts).map(
        lambda it: json.dumps(it).encode()
    )
)
def test_whatever_else_comes_is_refused_in_words(value: bytes) -> None:
    with pytest.raises(MessageRefused, match="is no CloudEvent: "):
        Event.decode(value)


@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_the_bytes_of_an_event_are_those_on_record(case: dict[str, Any]) -> None:
    fields = dict(case["event"])
    if "data_base64" in fields:
        fields["data"] = base64.b64decode(fields.pop("data_base64"))
    assert Event(**fields).encode() == case["value"].encode()
    assert Event.decode(case["value"].encode()) == Event(**fields)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "it is no JSON object"),
        ({"id": "1", "source": "/s", "type": "t"}, "its specversion is None; expected '1.0'"),
        (event(specversion="0.3"), "its specversion is '0.3'"),
        (event(id=""), "'id' is ''; expected text that is not empty"),
        (event(id=None), "it has no 'id'"),
        (event(type=7), "'type' is 7"),
        (event(time="yesterday"), "'time' is 'yesterday'; expected RFC 3339"),
        (event(time="2026-02-30T12:00:00Z"), "expected RFC 3339"),
        (event(data=1, data_base64="AA=="), "it has both 'data' and 'data_base64'"),
        (event(data_base64="%"), "its 'data_base64' is no base64"),
        (event(data_base64=7), "its 'data_base64' is no base64"),
        (event(Capital="x"), "'Capital' is no name of an extension attribute"),
        (
            event(a=1.5),
            "extension 'a' is 1.5; expected text, a boolean, or a whole number of up to 32 bits",
        ),
        (event(a=2**31), "whole number of up to 32 bits"),
        (event(a=[1]), "extension 'a'"),
        (event(subject="\ud800"), "half a surrogate pair"),
    ],
)
def test_what_is_no_event_is_refused_with_what_is_wrong(value: object, reason: str) -> None:
    with pytest.raises(MessageRefused) as refused:
        Event.decode(json.dumps(value).encode())
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "value",
    [b"", b"\xff", b"{", b'{"data":NaN}', b"[" * 100_000, json.dumps(event()).encode("utf-16")],
)
def test_what_is_no_json_is_refused(value: bytes) -> None:
    with pytest.raises(MessageRefused, match="it is no JSON"):
        Event.decode(value)


@pytest.mark.parametrize("data", [object(), float("nan"), {1: {2}}, "\ud800", {"a": {3}}])
def test_data_that_is_no_json_is_refused_when_the_event_is_encoded(data: object) -> None:
    with pytest.raises(MessageRefused, match="the data of event '1' is no data"):
        Event(id="1", source="/s", type="t", data=data).encode()


@pytest.mark.parametrize(
    "name", ["data", "specversion", "id", "data_base64", "with space", "", "Ü"]
)
def test_an_extension_cannot_take_the_name_of_something_else(name: str) -> None:
    with pytest.raises(MessageRefused, match="is no name of an extension attribute"):
        Event(id="1", source="/s", type="t", extensions={name: "x"})


def test_an_attribute_that_is_null_is_one_that_is_not_there() -> None:
    assert Event.decode(json.dumps(event(subject=None, x=None, data=None)).encode()) == Event(
        id="1", source="/s", type="t"
    )


def test_an_event_cannot_be_changed_and_can_be_sent_to_another_process() -> None:
    made = Event(id="1", source="/s", type="t", data={"n": [1]})
    with pytest.raises(AttributeError):
        made.id = "2"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(made)) == made


@given(
    st.text(min_size=1).filter(lambda name: name.isprintable()),
    st.binary(),
    st.text(),
    st.integers(1, 2**53 - 1),
)
def test_a_dead_letter_is_an_event_whatever_the_error_says(
    queue: str, value: bytes, error: str, id: int
) -> None:
    letter = make_dead_letter(queue, "g", LeasedMessage(id, value, 3, 1, "token"), error, 2000)
    event = Event.decode(letter)
    assert (event.type, event.extensions["originalid"]) == ("busmq.dead", str(id))
    assert not any(mark in str(event.extensions["error"]) for mark in "\n\r\t\0")
    found = decode_letter(letter)
    assert (found.queue, found.group, found.id, found.value, found.tries) == (
        queue,
        "g",
        id,
        value,
        3,
    )
