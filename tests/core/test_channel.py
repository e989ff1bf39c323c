"""Frames of a channel and the acks of a reliable one: no server, no loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import ConfigError, ProtocolError
from busmq_spark.objects.service_and_channel_messages import (
    ChannelAckTracker,
    ChannelFrameKind,
    carries_application_message,
    encode_frame,
    frame_body,
    frame_kind,
)
from busmq_spark.queue.message import Message

kinds = st.sampled_from(ChannelFrameKind)
# What was handed over, one id after the other: whether it waits for an ack, and the acks of the
# application in between.
steps = st.lists(st.one_of(st.booleans(), st.integers(0, 30)), max_size=40)


@given(kinds, st.binary(max_size=20))
def test_a_frame_is_read_as_it_was_written(kind: ChannelFrameKind, body: bytes) -> None:
    message = Message(7, encode_frame(kind, body))
    assert frame_kind(message, "q") is kind
    assert carries_application_message(message) == (kind is ChannelFrameKind.MESSAGE)
    assert frame_body(message) == Message(7, body)


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (ChannelFrameKind.HERE, b":1:"),
        (ChannelFrameKind.MESSAGE, b":2:a:b"),
        (ChannelFrameKind.LEAVING, b":3:"),
        (ChannelFrameKind.END, b":4:"),
    ],
    ids=str,
)
def test_frames_are_those_of_npm_busmq(kind: ChannelFrameKind, written: bytes) -> None:
    assert encode_frame(kind, written[3:]) == written


@given(st.binary(max_size=6))
def test_whatever_is_no_frame_is_an_error_that_names_queue_and_id(value: bytes) -> None:
    message = Message(12, value)
    if value[:3] in (b":1:", b":2:", b":3:", b":4:"):
        return
    assert not carries_application_message(message)
    with pytest.raises(
        ProtocolError, match=r"message 12 of queue 'channel:local:c' begins with "
    ) as caught:
        frame_kind(message, "channel:local:c")
    assert (
        caught.value.details["found"] == repr(value[:3])[1:]
    )  # three bytes at most: the rest may be a secret


@given(steps)
def test_no_ack_goes_beyond_a_message_that_the_application_has_not_acked(
    steps: list[bool | int],
) -> None:
    acks, open_, told = ChannelAckTracker(), set(), 0
    id = 0
    for step in steps:
        if isinstance(step, bool):
            id += 1
            acks.on_handed_over(id, waits=step)
            open_ |= {id} if step else set()
        else:
            acks.ack(step)
            open_ -= set(range(step + 1))
        if due := acks.id_to_ack:
            assert due > told
            acks.on_acked(due)
            told = due
        assert told == min(open_, default=id + 1) - 1  # and none that is allowed is held back


def test_what_was_not_sent_to_redis_stays_due() -> None:
    acks = ChannelAckTracker()
    acks.on_handed_over(1, waits=True)
    acks.ack(1)
    assert (acks.id_to_ack, acks.id_to_ack) == (1, 1)
    acks.ack(1)
    assert acks.id_to_ack == 1
    acks.on_acked(1)
    assert acks.id_to_ack == 0


def test_nothing_is_due_before_the_first_frame_whatever_its_id() -> None:
    acks = ChannelAckTracker()
    assert acks.id_to_ack == 0
    acks.on_handed_over(5, waits=True)
    assert acks.id_to_ack == 0


def test_a_message_that_was_not_handed_over_is_not_acked() -> None:
    acks = ChannelAckTracker()
    acks.ack(100)
    acks.on_handed_over(1, waits=True)
    assert acks.id_to_ack == 0


def test_a_new_life_of_the_queue_begins_anew() -> None:
    acks = ChannelAckTracker()
    acks.on_handed_over(8, waits=False)
    acks.on_handed_over(9, waits=True)
    acks.on_handed_over(1, waits=False)
    assert acks.id_to_ack == 1
    acks.on_acked(8)  # an ack of the earlier life comes home late
    assert acks.id_to_ack == 1
    acks.on_acked(1)
    acks.on_handed_over(2, waits=True)
    acks.ack(2)
    assert acks.id_to_ack == 2


@pytest.mark.parametrize("id", [-1, "3", None, 2**53, 1.0])
def test_what_is_no_id_is_refused(id: object) -> None:
    with pytest.raises(ConfigError, match="the id to ack"):
        ChannelAckTracker().ack(id)  # type: ignore[arg-type]  # that is the point
