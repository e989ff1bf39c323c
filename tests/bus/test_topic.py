"""A topic: which partition a message goes to, on which server that is, how a topic grows, and what
is refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.topics.topic import Topic
from busmq_spark.embedded import EmbeddedStandaloneServers
from busmq_spark.errors import (
    ConfigError,
    QueueBusy,
    QueueFull,
    StateError,
    TopicMissing,
    TopicShrinks,
)
from busmq_spark.groups.topic import GroupLag, TopicMessageId, partition_of
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import server_index
from busmq_spark.redis_io.sync_link import SyncLink
from tests.bus.tools import until
from tests.conftest import Fresh

PARTITIONS = 5


async def texts(topic: Topic) -> list[list[str]]:
    """What is stored, by partition."""
    return [
        (
            [message.text async for message in queue.consume(max=await queue.count())]
            if await queue.count()
            else []
        )
        for queue in topic.queues
    ]


async def test_a_key_has_its_partition_and_its_messages_stay_in_order(
    place: dict[str, Any], fresh: Fresh
) -> None:
    name = fresh("t")
    async with (
        Bus(**place) as bus,
        Bus(**place) as other,
        bus.topic(name, PARTITIONS) as topic,
        other.topic(name) as same,
    ):
        values = [f"{n % 7}:{n}" for n in range(200)]
        placed = await topic.push_many(values, keys=[value.partition(":")[0] for value in values])
        assert [each.partition for each in placed] == [
            partition_of(value.partition(":")[0], PARTITIONS) for value in values
        ]
        zero = topic.partition_of("0")
        assert await same.push("0:last", key="0") == TopicMessageId(
            zero, sum(each.partition == zero for each in placed) + 1
        )
        found = await texts(same)
        assert sorted(text for part in found for text in part) == sorted([*values, "0:last"])
        for part in found:
            for key in {text.partition(":")[0] for text in part}:
                mine = [text.partition(":")[2] for text in part if text.startswith(f"{key}:")]
                assert mine == sorted(mine, key=lambda n: 10**6 if n == "last" else int(n))


async def test_a_partition_counts_more_than_a_key_and_without_either_partitions_have_their_turns(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.topic(fresh("t"), PARTITIONS) as topic:
        assert [(await topic.push("v", key=f"k{n}", partition=3)).partition for n in range(5)] == [
            3
        ] * 5
        turns = [(await topic.push(n)).partition for n in range(2 * PARTITIONS)]
        assert sorted(turns[:PARTITIONS]) == list(range(PARTITIONS))
        assert turns[PARTITIONS:] == turns[:PARTITIONS]
        batches = [
            {each.partition for each in await topic.push_many("abc")} for _ in range(PARTITIONS)
        ]
        assert sorted(partition for batch in batches for partition in batch) == list(
            range(PARTITIONS)
        )


async def test_the_empty_key_is_a_key_and_none_is_none(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.topic(fresh("t"), PARTITIONS) as topic:
        assert {
            (await topic.push("v", key=key)).partition for key in ("", b"") for _ in range(3)
        } == {partition_of("", PARTITIONS)}
        assert (
            len({(await topic.push("v", key=None)).partition for _ in range(PARTITIONS)})
            == PARTITIONS
        )
        placed = await topic.push_many(["a", "b", "c", "d"], keys=["k", None, "k", None])
        assert placed[0].partition == placed[2].partition == topic.partition_of("k")
        assert placed[1].partition == placed[3].partition


async def test_pushes_keep_their_order_awaited_or_not_also_before_the_topic_is_attached(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus:
        topic = bus.topic(fresh("t"), PARTITIONS)
        attaching = asyncio.ensure_future(topic.attach())
        await asyncio.sleep(0)
        pushes = [
            topic.push(n, key="k") if n % 3 else topic.push_many([n], keys=["k"]) for n in range(20)
        ]
        attaching.add_done_callback(
            lambda _: pushes.extend([topic.push(n, key="k") for n in range(20, 40)])
        )  # while those still wait
        await attaching
        await until(lambda: len(pushes) == 40)
        placed = [
            each if isinstance(each, TopicMessageId) else each[0]
            for each in await asyncio.gather(*pushes)
        ]
        assert placed == [TopicMessageId(topic.partition_of("k"), n + 1) for n in range(40)]
        assert await topic.push_many([]) == []


async def test_partitions_are_dealt_out_to_the_servers_and_found_where_they_are(
    three_servers: EmbeddedStandaloneServers, three_links: list[SyncLink], fresh: Fresh
) -> None:
    url = ",".join(three_servers.urls)
    name = next(
        name
        for name in iter(lambda: fresh("t"), "")
        if server_index(f"bus:queue:{name}/0:metadata", 3) != 0
    )

    def servers(partition: int) -> list[int]:
        return [
            i
            for i, link in enumerate(three_links)
            if link.execute(command("EXISTS", f"bus:queue:{name}/{partition}:metadata"))
        ]

    async with (
        Bus(url) as bus,
        bus.queue(f"{name}/4", server=0) as earlier,
        bus.topic(name, 7) as topic,
    ):
        await topic.push_many([str(n) for n in range(70)], keys=[str(n) for n in range(70)])
        assert [servers(i) for i in range(7)] == [
            [0],
            [1],
            [2],
            [0],
            [0],
            [2],
            [0],
        ]  # the fifth was there
        assert await earlier.count() == await topic.queues[4].count() > 0
        await topic.grow(9)
        assert [servers(i) for i in (7, 8)] == [[1], [2]]
        async with Bus(url) as other, other.queue(f"{name}/1") as plain:
            assert (plain.server, await plain.count()) == (1, await topic.queues[1].count())


async def test_a_topic_keeps_the_number_it_was_made_with_and_grows_for_all(
    place: dict[str, Any], fresh: Fresh
) -> None:
    name = fresh("t")
    async with (
        Bus(**place) as bus,
        Bus(**place) as other,
        bus.topic(name, 4) as topic,
        other.topic(name, 9) as same,
    ):
        assert (topic.partitions, same.partitions) == (4, 4)
        await topic.queues[0].subscribe("reads")
        assert await topic.grow(6) == await topic.grow(6) == 6
        await until(lambda: same.partitions == 6 and all(queue.attached for queue in same.queues))
        assert [
            [each.name for each in await queue.subscriptions()] for queue in same.queues[4:]
        ] == [["reads"]] * 2
        with pytest.raises(TopicShrinks, match="has 6 partitions and cannot have 5"):
            await same.grow(5)
        assert {
            each.partition for each in await same.push_many(range(100), keys=map(str, range(100)))
        } == set(range(6))


async def test_topics_whose_names_begin_alike_never_meet(redis_url: str, fresh: Fresh) -> None:
    name = fresh("t")
    async with Bus(redis_url) as bus:
        topics = [bus.topic(f"{name}{end}", 11) for end in ("", "/1", "/10")]
        for topic in topics:
            await topic.push_many([topic.name] * 50, keys=map(str, range(50)))
        for topic in topics:
            assert Counter(text for part in await texts(topic) for text in part) == {topic.name: 50}
            async with topic.group("g") as member:
                assert not [each for each in await topic.groups() if each.behind]
                assert member.topic.partitions == 11


async def test_what_does_not_fit_is_told_and_the_other_partitions_have_theirs(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.topic(fresh("t"), 2, maxsize=3) as topic:
        keys = [
            next(str(n) for n in range(100) if topic.partition_of(str(n)) == partition)
            for partition in (0, 0, 1, 0, 0, 1)
        ]
        with pytest.raises(QueueFull) as full:
            await topic.push_many(range(6), keys=keys)
        assert full.value.details["left"] == 1
        assert full.value.details["placed"] == [
            None,
            None,
            TopicMessageId(1, 1),
            None,
            None,
            TopicMessageId(1, 2),
        ]
        assert [await queue.count() for queue in topic.queues] == [3, 2]
        with pytest.raises(QueueFull):
            await topic.push("v", partition=0)


async def test_what_is_no_topic_partition_or_key_is_refused(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        for wrong in (
            lambda: bus.topic(""),
            lambda: bus.topic("a:members:b", 3),
            lambda: bus.topic(fresh(), 0),
            lambda: bus.topic(fresh(), True),
        ):
            with pytest.raises(ConfigError):
                wrong()
        with pytest.raises(TopicMissing, match="does not exist"):
            await bus.topic(fresh("t")).attach()
        with pytest.raises(TopicMissing):
            await bus.topic(fresh("t")).push("v")
        topic = bus.topic(fresh("t"), 3)
        with pytest.raises(StateError, match="not attached"):
            topic.partition_of("k")
        await topic.attach()
        await topic.attach()
        for push in (
            lambda: topic.push("v", partition=3),
            lambda: topic.push("v", partition=-1),
            lambda: topic.push("v", key=7),  # type: ignore[arg-type]
            lambda: topic.push_many(["v", "w"], keys=["a"]),
            lambda: topic.push_many(["v", "w"], keys=["a", 1.5]),  # type: ignore[list-item]
            lambda: topic.group(":g"),
            lambda: topic.group("a:lease:b"),
        ):
            with pytest.raises(ConfigError):
                await push()
        for partitions in (0, 1001, "4"):
            with pytest.raises(ConfigError):
                await topic.grow(partitions)  # type: ignore[arg-type]
        assert [await queue.count() for queue in topic.queues] == [0, 0, 0]
        await topic.detach()
        await topic.detach()


async def test_groups_are_listed_moved_and_dropped_over_all_partitions(
    place: dict[str, Any], fresh: Fresh
) -> None:
    async with Bus(**place) as bus, bus.topic(fresh("t"), 3) as topic:
        await topic.push_many("abcdef", keys="123456")
        async with topic.group("g") as member:
            await until(lambda: member.partitions == [0, 1, 2])
            [found] = await topic.groups()
            assert (found.name, found.behind, found.partitions, found.read) == ("g", 6, 3, 3)
            with pytest.raises(QueueBusy):
                await topic.seek("g", "latest")
            with pytest.raises(QueueBusy):
                await topic.drop("g")
        assert sum(await topic.seek("g", "latest")) == 6
        assert await topic.groups() == [GroupLag("g", 0, 0, 3, 0)]
        assert (await topic.drop("g"), await topic.drop("g"), await topic.groups()) == (
            True,
            False,
            [],
        )


def test_a_topic_without_a_loop(redis_url: str, fresh: Fresh) -> None:
    with Bus.sync(redis_url) as bus, bus.topic(fresh("t"), partitions=3) as topic:
        assert topic.push("a", key="k") == TopicMessageId(topic.partition_of("k"), 1)
        assert len(topic.push_many(["b", "c"], keys=["k", "k"])) == 2
        with topic.group("g") as member:
            batch = next(member.batches())
            assert ([each.text for each in batch], batch.partition) == (
                ["a", "b", "c"],
                topic.partition_of("k"),
            )
            member.ack(batch)
        assert [each.behind for each in topic.groups()] == [0]
        assert topic.grow(4) == 4
