"""The envelopes of services: byte for byte those of npm busmq, and nothing a peer sends can do
harm.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import MessageRefused, QueueMissing
from busmq_spark.objects.service_and_channel_messages import (
    ABSENT,
    ServiceReply,
    ServiceRequest,
    decode_reply,
    decode_request,
    error_object,
    reply_error_text,
)
from busmq_spark.queue.keys import reply_queue, service_queue

OPERATIONS = json.loads(
    (Path(__file__).parents[1] / "golden" / "service-transcripts.json").read_text("utf-8")
)["operations"]
PUSHES = [
    words
    for operation in OPERATIONS
    for words in operation["commands"]
    if words[:2] == ["evalsha", "sha1:PUSH"]
]
REQUESTS = [words[7] for words in PUSHES if ":replyTo:" not in words[3] and words[7] != "notjson"]
REPLIES = [words[7] for words in PUSHES if ":replyTo:" in words[3]]

texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**53), 2**53),
        st.floats(allow_nan=False, allow_infinity=False),
        texts,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=10,
)


@pytest.mark.parametrize("text", REQUESTS)
def test_a_captured_request_is_encoded_as_it_came(text: str) -> None:
    assert decode_request(text).encode() == text.encode()


@pytest.mark.parametrize("text", REPLIES)
def test_a_captured_reply_is_encoded_as_it_came(text: str) -> None:
    assert decode_reply(text).encode() == text.encode()


def test_the_captures_hold_every_kind_of_frame() -> None:
    requests, replies = (
        [decode_request(text) for text in REQUESTS],
        [decode_reply(text) for text in REPLIES],
    )
    assert {request.reply_to is None for request in requests} == {True, False}
    assert {(reply.partial, reply.is_error, reply.reply is ABSENT) for reply in replies} == {
        (False, False, False),
        (True, False, False),
        (False, True, True),
        (False, False, True),
    }


@given(
    values,
    texts,
    st.one_of(st.none(), texts.filter(bool)),
    st.one_of(st.none(), st.integers(0, 2**53)),
)
def test_a_request_comes_back_as_it_was(
    data: Any, req_id: str, reply_to: str | None, expires_ms: int | None
) -> None:
    frame = ServiceRequest(data, req_id, reply_to, expires_ms)
    assert decode_request(frame.encode().decode()) == frame


@given(
    st.one_of(texts, st.integers(), st.just(ABSENT)),
    st.one_of(st.none(), texts, st.dictionaries(texts, values)),
    values,
    st.booleans(),
)
def test_a_reply_comes_back_as_it_was(req_id: Any, error: Any, reply: Any, partial: bool) -> None:
    frame = ServiceReply(req_id, error, reply, partial)
    assert decode_reply(frame.encode().decode()) == frame


@given(
    st.one_of(
        st.text(),
        values.map(json.dumps),
        st.dictionaries(
            st.sampled_from(["data", "replyTo", "reqId", "expires", "err"]), values
        ).map(json.dumps),
    )
)
def test_whatever_a_peer_sends_is_understood_or_a_value_error(text: str) -> None:
    for decode in (decode_request, decode_reply):
        try:
            frame = decode(text)
        except ValueError:
            continue
        frame.encode()
        if isinstance(frame, ServiceRequest):
            frame.is_expired(0)
            (frame.reply_to or "").encode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("notjson", "Expecting value"),
        ("null", "NoneType"),
        ("[]", "list"),
        ('{"data":NaN}', "NaN"),
        ('{"replyTo":5}', "int"),
        ('{"replyTo":"\\ud800"}', "surrogate"),
        ("[" * 100_000, "deeply"),
    ],
)
def test_what_is_no_request_says_why(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_request(text)


def test_absent_keys_are_left_out_and_null_is_not_absent() -> None:
    assert ServiceRequest(None).encode() == b'{"data":null}'
    assert decode_request("{}") == ServiceRequest(None)
    assert decode_request('{"replyTo":""}').reply_to is None
    assert ServiceReply("1").encode() == b'{"err":null,"reqId":"1"}'
    assert ServiceReply("1", reply=None).encode() == b'{"err":null,"reply":null,"reqId":"1"}'
    assert not decode_reply('{"reply":1,"reqId":"1"}').is_error
    assert repr(ABSENT) == "ABSENT"


def test_a_request_is_expired_only_after_its_time_and_never_without_one() -> None:
    assert [ServiceRequest(1, expires_ms=100).is_expired(now_ms) for now_ms in (99, 100, 101)] == [
        False,
        False,
        True,
    ]
    assert not ServiceRequest(1).is_expired(10**18)
    assert [
        decode_request(f'{{"expires":{text}}}').expires_ms
        for text in ("true", '"5"', "null", "7.5")
    ] == [None, None, None, 7.5]


def test_what_json_cannot_express_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for data in (b"bytes", object(), deep, "\ud800", float("nan")):
        with pytest.raises(MessageRefused):
            ServiceRequest(data).encode()


def test_an_exception_shows_its_message_and_code_and_no_stack_trace() -> None:
    assert error_object(ValueError("boom")) == {"message": "boom"}
    assert error_object(KeyError()) == {"message": "KeyError"}
    assert error_object(QueueMissing(queue="q"))["code"] == "BUSMQ_QUEUE_MISSING"
    assert error_object(ValueError("half \ud800"), "at\ud800") == {
        "message": "half ?",
        "stack": "at?",
    }


def test_an_exception_with_a_stack_has_the_keys_in_the_order_of_npm() -> None:
    error = ValueError("boom")
    error.code = 5  # type: ignore[attr-defined]  # as an exception of another package may have
    assert list(error_object(error, "at …")) == ["message", "stack", "code"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("bad", "bad"),
        ({"message": "boom"}, "boom"),
        ({"message": ""}, '{"message": ""}'),
        ({"ä": 1}, '{"ä": 1}'),
        (5, "5"),
    ],
)
def test_the_error_of_a_provider_is_passed_on_as_text(error: Any, text: str) -> None:
    assert reply_error_text(error) == text


def test_the_queues_of_a_service_have_the_names_of_the_protocol() -> None:
    assert service_queue("svc") == "service:svc"
    assert reply_queue("svc", "70d2834dbf790168") == "service:svc:replyTo:70d2834dbf790168"
