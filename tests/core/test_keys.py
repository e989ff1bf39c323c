"""Keys are those of npm busmq, and a name is placed where npm busmq places it."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.queue.keys import (
    QueueKeys,
    is_reply_queue,
    metadata_pattern,
    queue_name,
    server_index,
    sink_record,
)

PLACED = json.loads(
    (Path(__file__).parents[1] / "golden" / "redis-location.json").read_text("utf-8")
)["vectors"]
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize("vector", PLACED, ids=lambda vector: str(vector["key"]))
def test_a_key_has_the_server_that_npm_busmq_was_seen_to_use(vector: dict[str, object]) -> None:
    assert server_index(str(vector["key"]), 3) == vector["index"]
    assert server_index(str(vector["key"]), 10**9) == vector["codeUnitSum"]


def test_an_astral_character_counts_as_its_two_surrogates() -> None:
    assert server_index("😀", 10**9) == 0xD83D + 0xDE00
    assert server_index("\ud83d", 10**9) == 0xD83D


@given(st.text(), st.integers(1, 50))
def test_the_hash_is_the_sum_of_the_utf16_code_units(key: str, servers: int) -> None:
    units = sum(
        (
            c
            if (c := ord(char)) < 0x10000
            else 0xD800 + ((c - 0x10000) >> 10) + 0xDC00 + ((c - 0x10000) & 0x3FF)
        )
        for char in key
    )
    assert server_index(key, servers) == units % servers


def test_the_keys_are_spelt_as_npm_busmq_spells_them() -> None:
    keys = QueueKeys("orders")
    assert keys.peer_keys == (
        "bus:queue:orders:metadata",
        "bus:queue:orders:messages",
        "bus:queue:orders:msgid",
        "bus:queue:orders:toack",
    )
    assert keys.available == "bus:queue:orders:available"


def test_our_own_keys_stand_beside_the_shared_ones() -> None:
    keys = QueueKeys("orders")
    assert keys.all == (
        *keys.peer_keys,
        "bus:queue:orders:acks",
        "bus:queue:orders:sinks",
        "bus:queue:orders:clock",
        "bus:queue:orders:bytes",
    )
    assert keys.lease("daily") == "bus:queue:orders:lease:daily"
    assert keys.stage("a-1") == "bus:queue:orders:stage:a-1"
    assert sink_record("s1") == "bus:sink:s1"


def test_all_keys_of_a_queue_share_the_hash_tag_of_a_cluster() -> None:
    keys = QueueKeys("orders", cluster=True)
    for key in (*keys.all, keys.available, keys.lease("x"), keys.stage("y")):
        assert key.startswith("{bus:queue:orders}:")


@given(names, st.booleans())
def test_the_name_of_a_queue_is_found_again_in_its_metadata_key(name: str, cluster: bool) -> None:
    assert queue_name(QueueKeys(name, cluster).metadata, cluster=cluster) == name


@given(names, st.booleans())
def test_the_scan_pattern_matches_every_metadata_key(name: str, cluster: bool) -> None:
    assert fnmatchcase(QueueKeys(name, cluster).metadata, metadata_pattern(cluster=cluster))


@pytest.mark.parametrize(
    "key",
    [
        "bus:queue::metadata",
        "bus:queue:metadata",
        "bus:queue:a:messages",
        "bus:persisted:a",
        "x:bus:queue:a:metadata",
        "{bus:queue:a}:metadata",
        "",
    ],
)
def test_a_key_of_another_kind_names_no_queue(key: str) -> None:
    assert queue_name(key) is None
    assert queue_name(QueueKeys("a").metadata, cluster=True) is None


@pytest.mark.parametrize(
    ("queue", "is_one"),
    [
        ("service:mail:replyTo:0123456789abcdef", True),
        ("service:mail:replyTo:0123456789abcdef0", False),
        ("service:mail:replyTo:", False),
        ("service:mail:replyTo:other", False),
        ("service:mail:replyTo:0123456789abcdef:replyTo:0123456789abcdef", False),
        ("service:mailer:replyTo:0123456789abcdef", False),
        ("service:mail", False),
        ("payments", False),
    ],
)
def test_the_reply_queue_of_a_service_is_no_other_queue(queue: str, is_one: bool) -> None:
    assert is_reply_queue("mail", queue) is is_one
