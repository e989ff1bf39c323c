"""Hash slots: the vectors of the specification, a real server's own answer for any key, maps with
holes, redirections.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.embedded.layouts import SLOTS
from busmq_spark.queue.command_generators import RedisCall, command, script
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.slots import Redirect, SlotMap, key_of, parse_redirect, slot_of_key
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import parse

TAGGED = st.lists(
    st.sampled_from([b"{", b"}", b"a", b"user", b"\xff", "é".encode()]), max_size=8
).map(b"".join)
MAP = SlotMap.parse(
    [[100, 200, [b"a", 1], [b"replica", 9]], [0, 50, [b"", 2]], [SLOTS - 1, SLOTS - 1, [b"a", 1]]],
    "asked",
)


@pytest.fixture(scope="module")
def clustered() -> Iterator[SyncLink]:
    """One node of a cluster without slots: enough to be asked for the slot of a key."""
    with EmbeddedRedis(settings={"cluster-enabled": "yes"}) as server:
        link = SyncLink(parse(server.url)[0])
        yield link
        link.close()


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (
            b"123456789",
            0x31C3,
        ),  # the check value of CRC16/XMODEM, as the specification of Redis Cluster gives it
        (b"foo", 12182),
        (b"{foo}.bar", 12182),
        (b"x{foo}{bar}", 12182),
        (b"", 0),
    ],
)
def test_a_slot_is_the_checksum_of_the_tag(key: bytes, expected: int) -> None:
    assert slot_of_key(key) == expected


@given(st.lists(st.one_of(st.binary(max_size=40), TAGGED), min_size=1, max_size=50))
def test_every_key_has_the_slot_that_redis_gives_it(clustered: SyncLink, keys: list[bytes]) -> None:
    assert [slot_of_key(key) for key in keys] == clustered.execute(
        [command("CLUSTER", "KEYSLOT", key) for key in keys]
    )


def test_text_and_its_bytes_have_one_slot() -> None:
    assert slot_of_key("bus:héllo") == slot_of_key("bus:héllo".encode())


def test_all_keys_of_a_queue_share_a_slot_in_a_cluster() -> None:
    keys = QueueKeys("orders}{", cluster=True)
    assert len({slot_of_key(key) for key in (*keys.all, keys.lease("s"), keys.stage("a"))}) == 1


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (script("pop", ["list"], (1, 1, 1)), "list"),
        (command("GET", b"k"), b"k"),
        (command("GET", 7), "7"),
        (command("publish", "channel", "x"), "channel"),
        (command("PUBSUB", "NUMSUB", "channel"), None),
        (command("PING"), None),
    ],
)
def test_the_key_that_routes_a_call(call: RedisCall, key: bytes | str | None) -> None:
    assert key_of(call) == key


@pytest.mark.parametrize(
    ("slot", "owner"),
    [
        (0, ("asked", 2)),
        (50, ("asked", 2)),
        (51, None),
        (99, None),
        (100, ("a", 1)),
        (200, ("a", 1)),
        (201, None),
        (SLOTS - 1, ("a", 1)),
    ],
)
def test_a_slot_between_two_ranges_has_no_owner(slot: int, owner: tuple[str, int] | None) -> None:
    assert MAP.owner(slot) == owner


def test_each_master_is_named_once_and_no_replica() -> None:
    assert MAP.masters == (("asked", 2), ("a", 1))


def test_no_slot_has_an_owner_in_an_empty_map() -> None:
    assert SlotMap.parse([], "asked").owner(0) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("MOVED 3999 127.0.0.1:6381", Redirect(("127.0.0.1", 6381), asking=False)),
        ("ASK 3999 node-2:6381", Redirect(("node-2", 6381), asking=True)),
        ("MOVED 3999 :6381", Redirect(("asked", 6381), asking=False)),
        ("MOVED 3999 2001:db8::1:6381", Redirect(("2001:db8::1", 6381), asking=False)),
        ("ERR MOVED 1 a:1", None),
        ("TRYAGAIN Multiple keys request during rehashing of slot", None),
    ],
)
def test_a_redirection_says_where_and_for_how_long(text: str, found: Redirect | None) -> None:
    assert parse_redirect(text, "asked") == found
