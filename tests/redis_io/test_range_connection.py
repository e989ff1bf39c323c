"""Replies to range reads, taken apart by our own eyes and not by a client's: whatever bytes are in
them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import LinkLost, ServerRefused
from busmq_spark.queue.command_generators import RedisCall, command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io import connection_factory
from busmq_spark.redis_io.range_connection import RangeConnection, ValueSpans
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import RedisServerAddress, parse
from tests.conftest import Fresh, FreshKeys
from tests.redis_io.fakes import CLOSE, FakeRedis, answered, says


@pytest.fixture
def ranges(redis_url: str) -> Iterator[RangeConnection]:
    made = RangeConnection(parse(redis_url)[0])
    yield made
    made.drop()


def values_of(pairs: ValueSpans) -> list[bytes]:
    return [
        bytes(pairs.data[start : start + length])
        for start, length in zip(pairs.starts, pairs.lengths, strict=True)
    ]


def fill(link: SyncLink, keys: QueueKeys, values: list[bytes], first: int = 1) -> None:
    link.execute(
        [command("RPUSH", keys.messages, id, value) for id, value in enumerate(values, first)]
    )


def window(keys: QueueKeys, start: int, many: int) -> RedisCall:
    return command("LRANGE", keys.messages, 2 * start, 2 * (start + many) - 1)


# What could be taken for the protocol itself.
pieces = st.sampled_from(
    [
        b"\r\n",
        b"$",
        b"$1\r\n",
        b"\r\n$3\r\nabc\r\n",
        b"*2\r\n",
        b"-ERR\r\n",
        b":1\r\n",
        b"a",
        b"1",
        b"\x00\xff",
        b"",
        b"x" * 20_000,
    ]
)
tricky = st.lists(pieces, max_size=5).map(b"".join)


@settings(max_examples=150)
@given(st.lists(tricky, min_size=1, max_size=12), st.integers(1, 10**15), st.integers(1, 5))
def test_windows_come_back_as_they_are_stored_whatever_the_values_look_like(
    ranges: RangeConnection,
    link: SyncLink,
    fresh: Fresh,
    values: list[bytes],
    first: int,
    many: int,
) -> None:
    keys = QueueKeys(fresh())
    fill(link, keys, values, first)
    starts = range(0, len(values), many)
    for start in starts:
        ranges.post(window(keys, start, many), command("GET", keys.msgid))
    for start in starts:
        pairs = ranges.fetch_values()
        expected = values[start : start + many]
        assert (values_of(pairs), len(pairs)) == (expected, len(expected))
        assert (pairs.first, pairs.last) == (first + start, first + start + len(expected) - 1)
        assert ranges.fetch() is None
    assert ranges.waiting == 0
    link.execute(command("DEL", keys.messages))


@pytest.mark.parametrize("size", [5_000_000, 70_000_000])
def test_a_value_larger_than_the_buffer_arrives_whole(
    ranges: RangeConnection, link: SyncLink, fresh_keys: FreshKeys, size: int
) -> None:
    keys = fresh_keys()
    fill(link, keys, [b"before", b"\r\n" * (size // 2), b"after"])
    ranges.post(window(keys, 0, 9), window(keys, 2, 1))
    assert [len(value) for value in values_of(ranges.fetch_values())] == [6, size, 5]
    assert values_of(ranges.fetch_values()) == [b"after"]
    link.execute(command("DEL", keys.messages))


def test_an_empty_window_has_no_values(ranges: RangeConnection, fresh_keys: FreshKeys) -> None:
    ranges.post(window(fresh_keys(), 0, 9))
    pairs = ranges.fetch_values()
    assert (len(pairs), pairs.first, pairs.last) == (0, 0, 0)


def test_after_an_error_reply_the_next_reply_is_the_next_calls(
    ranges: RangeConnection, link: SyncLink, fresh_keys: FreshKeys
) -> None:
    keys = fresh_keys()
    fill(link, keys, [b"x"])
    link.execute(command("SET", keys.msgid, 1))
    ranges.post(
        command("LRANGE", keys.msgid, 0, 1), command("HGET", keys.msgid, "f"), window(keys, 0, 1)
    )
    with pytest.raises(ServerRefused, match="wrong kind"):
        ranges.fetch_values()
    with pytest.raises(ServerRefused, match="wrong kind"):
        ranges.fetch()
    assert values_of(ranges.fetch_values()) == [b"x"]
    assert ranges.waiting == 0


def test_what_was_under_way_when_it_was_dropped_is_discarded(
    ranges: RangeConnection, link: SyncLink, fresh_keys: FreshKeys
) -> None:
    keys = fresh_keys()
    fill(link, keys, [b"one", b"two"])
    ranges.post(window(keys, 0, 1), window(keys, 0, 2))
    ranges.fetch_values()
    ranges.drop()
    ranges.post(window(keys, 1, 1))
    assert values_of(ranges.fetch_values()) == [b"two"]


@pytest.mark.parametrize(
    "half", [b"", b"*4\r\n", b"*4\r\n$1\r\n1\r\n$5\r\nab", b"*4\r\n$1\r\n1\r\n$1\r\na\r\n"]
)
def test_a_link_that_breaks_in_a_reply_is_lost_and_works_again(half: bytes) -> None:
    answers = {1: half + CLOSE, 2: b"*2\r\n$1\r\n7\r\n$1\r\nx\r\n"}
    with FakeRedis(lambda number, _: answers[number]) as fake:
        ranges = RangeConnection(fake.server)
        ranges.post(command("LRANGE", "q", 0, 3))
        with pytest.raises(LinkLost, match=str(fake.server.port)):
            ranges.fetch_values()
        assert ranges.waiting == 0
        ranges.post(command("LRANGE", "q", 0, 3))
        assert (ranges.fetch_values().first) == 7
        ranges.drop()


def test_replies_out_of_step_are_not_taken_for_messages() -> None:
    with FakeRedis(says(b"$1\r\nx\r\n")) as fake:
        ranges = RangeConnection(fake.server)
        ranges.post(command("LRANGE", "q", 0, 3))
        with pytest.raises(LinkLost, match="out of step"):
            ranges.fetch_values()
        ranges.drop()


def test_a_server_that_falls_silent_in_the_middle_is_lost(
    monkeypatch: pytest.MonkeyPatch, fresh_keys: FreshKeys
) -> None:
    monkeypatch.setattr(connection_factory, "REPLY_TIMEOUT_S", 0.2)
    with EmbeddedRedis() as server:
        ranges = RangeConnection(parse(server.url)[0])

        def asked() -> bytes:
            ranges.post(command("ECHO", "a"))
            return bytes(ranges.fetch())

        assert answered(asked) == b"a"
        server.pause()
        with pytest.raises(LinkLost):
            asked()
        server.resume()
        assert answered(asked) == b"a"
        ranges.drop()


def test_a_server_that_is_not_there_is_lost_with_its_address_masked() -> None:
    with EmbeddedRedis() as server:
        port = server.port
    with pytest.raises(LinkLost, match=rf"\*\*\*@127.0.0.1:{port}"):
        RangeConnection(RedisServerAddress("127.0.0.1", port, password="secret")).post(
            command("GET", "a")
        )
