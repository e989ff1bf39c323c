"""Which partition a key has, which member has which partitions, and what a topic may be called."""

from __future__ import annotations

import random
from collections import Counter
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import ConfigError
from busmq_spark.groups.topic import (
    MAX_PARTITIONS,
    PushedTopicMessageIds,
    TopicMessageId,
    check_group,
    check_partition,
    check_partitions,
    check_topic,
    partition_home,
    partition_of,
    partition_queue,
    partition_queues,
    partition_ranges,
    partitions_of,
    topic_partition,
)
from busmq_spark.queue.keys import QueueKeys, TopicKeys, is_topic, topic_name, topic_pattern

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(is_topic)
sizes = st.integers(1, MAX_PARTITIONS)


@given(st.binary(), sizes)
def test_a_key_has_one_partition_in_every_process_and_language(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == crc32(key) % partitions


@pytest.mark.parametrize(
    ("key", "partition"), [(b"", 0), ("a", 7), ("user-42", 5), ("Grüße", 7), (b"\xff\x00", 3)]
)
def test_partitions_that_are_stored_with_their_messages_never_change(
    key: bytes | str, partition: int
) -> None:
    assert partition_of(key, 10) == partition


@given(st.text(st.characters(exclude_categories=["Cs"])), sizes)
def test_a_text_has_the_partition_of_its_utf8_bytes(key: str, partitions: int) -> None:
    assert partition_of(key, partitions) == partition_of(key.encode(), partitions)


@given(st.lists(st.one_of(st.none(), st.binary(), st.text())), sizes, st.integers(0, 9))
def test_many_keys_have_the_partitions_that_each_has(
    keys: list[bytes | str | None], partitions: int, turn: int
) -> None:
    for some in (
        keys,
        [key for key in keys if isinstance(key, str)],
        [key for key in keys if isinstance(key, bytes)],
    ):
        assert partitions_of(some, partitions, turn) == [
            turn if key is None else partition_of(key, partitions) for key in some
        ]


@given(st.lists(st.integers(0, 5)))
def test_the_places_of_many_messages_are_in_the_order_in_which_they_were_given(
    chosen: list[int],
) -> None:
    counts: Counter[int] = Counter()
    expected = [
        TopicMessageId(partition, counts.update([partition]) or counts[partition])
        for partition in chosen
    ]  # type: ignore[func-returns-value]
    places = PushedTopicMessageIds(
        chosen, {partition: range(1, count + 1) for partition, count in counts.items()}
    )
    assert (places, len(places), list(places), places[1:]) == (
        expected,
        len(chosen),
        expected,
        expected[1:],
    )
    assert (places == [*expected, TopicMessageId(0, 1)], places == chosen, repr(places)) == (
        False,
        not chosen,
        repr(expected),
    )


def test_random_keys_are_spread_within_five_percent() -> None:
    chance = random.Random(1)
    counts = Counter(partition_of(f"user-{chance.getrandbits(64):x}", 10) for _ in range(100_000))
    assert sorted(counts) == list(range(10))
    assert all(9_500 <= count <= 10_500 for count in counts.values()), counts


@given(st.lists(st.text(), max_size=40), sizes)
def test_ranges_are_contiguous_cover_every_partition_once_and_differ_by_one_at_most(
    members: list[str], partitions: int
) -> None:
    found = partition_ranges(members, partitions)
    assert list(found) == sorted(set(members))
    if members:
        assert [i for part in found.values() for i in part] == list(range(partitions))
        assert max(map(len, found.values())) - min(map(len, found.values())) <= 1


@given(st.lists(st.text(), unique=True, min_size=1), st.randoms(), sizes)
def test_every_member_computes_the_same_whatever_the_order_it_has_heard_in(
    members: list[str], chance: random.Random, partitions: int
) -> None:
    heard = [*members, members[0]]
    chance.shuffle(heard)
    assert partition_ranges(heard, partitions) == partition_ranges(members, partitions)


def test_of_more_members_than_partitions_the_last_ones_are_idle() -> None:
    found = partition_ranges([f"m{n:02}" for n in range(12)], 10)
    assert [len(part) for part in found.values()] == [1] * 10 + [0] * 2


def test_without_members_nobody_has_anything() -> None:
    assert partition_ranges([], 10) == {}


@given(names, st.integers(0, MAX_PARTITIONS - 1))
def test_the_name_of_a_partition_queue_says_its_topic_and_partition(
    topic: str, partition: int
) -> None:
    assert topic_partition(partition_queue(topic, partition)) == (topic, partition)


@given(names, names, st.integers(0, 20), st.integers(0, 20), st.booleans())
def test_two_topics_have_no_key_in_common(
    one: str, other: str, i: int, k: int, cluster: bool
) -> None:
    keys, others = (
        {
            TopicKeys(t, cluster).base,
            TopicKeys(t, cluster).members("g"),
            *QueueKeys(partition_queue(t, p), cluster).all,
        }
        for t, p in ((one, i), (other, k))
    )
    assert (one, i) == (other, k) or one == other or not keys & others


def test_a_topic_whose_name_is_that_of_a_partition_is_another_topic() -> None:
    assert partition_queues("t/1", 2) == ["t/1/0", "t/1/1"]
    assert not set(partition_queues("t/1", 100)) & {
        *partition_queues("t/10", 100),
        *partition_queues("t", 100),
    }
    assert topic_partition("t/1/0") == ("t/1", 0)


@pytest.mark.parametrize(
    "name", ["t", "t/", "/0", "t/01", "t/-1", "t/1.0", "t/10000", "t/1000", "t/x", "t/٣"]
)
def test_a_name_that_is_no_partition_queue_says_nothing(name: str) -> None:
    assert topic_partition(name) is None


@given(names, st.booleans())
def test_a_topic_is_found_again_in_its_key(name: str, cluster: bool) -> None:
    keys = TopicKeys(name, cluster)
    assert topic_name(keys.base, cluster=cluster) == name
    assert topic_name(keys.members("g"), cluster=cluster) is None
    assert topic_name(keys.members("g}"), cluster=cluster) is None
    assert topic_pattern(cluster=cluster)


def test_all_keys_of_a_topic_share_the_hash_tag_of_a_cluster() -> None:
    keys = TopicKeys("metrics", cluster=True)
    assert (keys.base, keys.members("agg"), keys.changed_channel) == (
        "{bus:topic:metrics}",
        "{bus:topic:metrics}:members:agg",
        "{bus:topic:metrics}:changed",
    )


@pytest.mark.parametrize(
    "name",
    [
        "",
        " t",
        "t ",
        ":t",
        "a\nb",
        "a\x7f",
        "t:members:g",
        "a:lease:b",
        "a:group:b",
        "channel:x",
        "service:x",
        None,
        7,
        b"t",
    ],
)
def test_a_name_that_could_be_another_key_is_refused(name: object) -> None:
    with pytest.raises(ConfigError, match="the name of the topic is"):
        check_topic(name)


@pytest.mark.parametrize(
    "name", ["t", "t/1", "t/10", "a/b/c", "clock", "a b", "Grüße", "{t}", "a,b", "metadata"]
)
def test_other_names_are_those_of_topics(name: str) -> None:
    assert check_topic(name) == name


@pytest.mark.parametrize("partitions", [0, -1, MAX_PARTITIONS + 1, True, 2.0, "10", None])
def test_a_number_of_partitions_that_is_none_is_refused(partitions: object) -> None:
    with pytest.raises(ConfigError, match="expected a whole number from 1 to 1000"):
        check_partitions(partitions)


@pytest.mark.parametrize("partition", [-1, 10, True, "1", 1.0])
def test_a_partition_out_of_range_is_refused(partition: object) -> None:
    with pytest.raises(ConfigError, match="has the partitions 0 to 9"):
        check_partition(partition, "t", 10)


@pytest.mark.parametrize("name", [":g", "g:metadata", "acks", "a:lease:b", "", " ", "a\nb"])
def test_a_group_that_could_be_another_key_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        check_group(name)


@given(sizes, st.integers(1, 8))
def test_partitions_are_dealt_out_to_the_servers_in_turn(partitions: int, servers: int) -> None:
    counts = Counter(partition_home(i, servers) for i in range(partitions))
    assert max(counts.values()) - min(counts.get(n, 0) for n in range(servers)) <= 1
