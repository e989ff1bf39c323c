"""The pure parts: cutting bytes into messages, and making anything safe to show."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.cli.info import find_dangers
from busmq_spark.cli.output import (
    escape_control_characters,
    format_duration,
    format_size,
    one_line,
    value_text,
)
from busmq_spark.cli.peek import parse_id_range
from busmq_spark.cli.push import split_messages
from busmq_spark.demo.report import FlightDelayTotals, by_carrier, worst_hours
from busmq_spark.errors import ConfigError
from busmq_spark.queue.message import MAX_ID


@given(
    st.lists(st.binary(max_size=20).map(lambda value: value.replace(b"\n", b"")), max_size=30),
    st.integers(1, 7),
)
def test_lines_do_not_depend_on_how_the_bytes_arrive(lines: list[bytes], step: int) -> None:
    stream = io.BytesIO(b"".join(line + b"\n" for line in lines))
    assert [
        line for batch, _ in split_messages(lambda _: stream.read(step), b"\n") for line in batch
    ] == lines


def test_a_message_without_an_end_is_a_message_and_an_end_without_one_is_not() -> None:
    assert [values for values, _ in split_messages(io.BytesIO(b"a\nb").read, b"\n")] == [
        [b"a"],
        [b"b"],
    ]
    assert [values for values, _ in split_messages(io.BytesIO(b"").read, b"\n")] == []
    assert [values for values, _ in split_messages(io.BytesIO(b"\n").read, b"\n")] == [[b""]]


@given(st.text())
def test_shown_text_is_one_printable_line(text: str) -> None:
    assert all(
        char.isprintable() or char in "\u200c\u200d" or char.isspace()
        for char in escape_control_characters(text)
    )
    assert not set(escape_control_characters(text)) & {
        chr(code) for code in (*range(32), *range(127, 160), 0x202E, 0x2066, 0x2028)
    }


def test_shown_keeps_what_people_write() -> None:
    for text in ("plain", "žluťoučký kůň", "日本語", "👩‍🚀", "عربي", "C:\\path [bold]"):
        assert escape_control_characters(text) == text


def test_binary_and_long_values_are_cut() -> None:
    assert value_text(b"\xff\x00") == "<2 bytes: ff 00>"
    assert value_text(b"\xff" * 40).endswith("ff …>")
    assert value_text(b"x" * 5000, 10) == "xxxxxxxxxx … <4.9 KB in all>"
    assert value_text(b"x" * 5000) == "x" * 5000


def test_texts_for_people() -> None:
    assert [format_duration(seconds) for seconds in (0, 59, 60, 3661, 604799)] == [
        "0 s",
        "59 s",
        "1 min",
        "1 h 1 min",
        "6 d 23 h",
    ]
    assert [format_size(count) for count in (0, 1, 1023, 1024, 1536 * 1024, 200 * 2**30)] == [
        "0 B",
        "1 B",
        "1023 B",
        "1.0 KB",
        "1.5 MB",
        "200 GB",
    ]
    assert one_line("a\n  b\x1b") == "a b\\e"


def test_id_ranges() -> None:
    assert [parse_id_range(text) for text in ("7", "7..9", "7..", "..9")] == [
        (7, 7),
        (7, 9),
        (7, MAX_ID),
        (1, 9),
    ]
    for text in ("", "..", "x", "7.9", "79 80", "-1"):
        with pytest.raises(ConfigError):
            parse_id_range(text)


def test_a_healthy_server_has_no_warnings() -> None:
    healthy = {
        "maxmemory_policy": "noeviction",
        "role": "master",
        "aof_enabled": "1",
        "redis_version": "7.2.4",
        "cluster_enabled": "0",
    }
    assert find_dangers(healthy) == []
    sick = {
        "maxmemory_policy": "volatile-lru",
        "role": "slave",
        "aof_enabled": "0",
        "redis_version": "5.0.1",
        "cluster_enabled": "1",
    }
    assert len(find_dangers(sick)) == 5


def test_means_are_weighted_by_flights() -> None:
    delays = [
        FlightDelayTotals("A", 5, 11, 10, 100, 10, 0),
        FlightDelayTotals("A", 6, 1, 1, 21, 1, 11),
        FlightDelayTotals("B", 5, 2, 0, None, 0, None),
    ]
    first, last = by_carrier(delays)
    assert (first.carrier, first.flights, first.mean_departure_delay, first.mean_arrival_delay) == (
        "A",
        12,
        11.0,
        1.0,
    )
    assert (last.carrier, last.mean_departure_delay, last.mean_arrival_delay) == ("B", None, None)
    assert [delay.hour for delay in worst_hours(delays, 1)] == [6]
