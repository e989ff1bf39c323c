"""One consumer of several topics: fair turns, membership and acks per topic."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import ConfigError, QueueBusy, StateError, TopicMissing
from tests.bus.tools import UNTIL_S, until
from tests.conftest import Fresh


async def two_topics(bus: Bus, fresh: Fresh, messages: int) -> tuple[str, str]:
    names = fresh(), fresh()
    for name in names:
        topic = bus.topic(name, partitions=4)
        await topic.push_many(range(messages), keys=[str(n) for n in range(messages)])
    return names


async def test_topics_come_in_turns_with_topic_and_partition(
    place: dict[str, Any], fresh: Fresh
) -> None:
    async with Bus(**place) as bus:
        one, two = await two_topics(bus, fresh, 200)
        seen: list[tuple[str, int]] = []
        found: dict[str, list[int]] = {one: [], two: []}
        assigned = []
        consumer = bus.consumer([one, bus.topic(two)], group="agg")
        consumer.on("assigned", lambda topic, partition: assigned.append((topic, partition)))
        async with asyncio.timeout(UNTIL_S), consumer:
            async for batch in consumer.batches(most=5):
                seen.append((batch.topic, batch.partition))
                found[batch.topic] += [message.json() for message in batch]
                await consumer.ack(batch)
                if sum(map(len, found.values())) == 400:
                    break
            everything = [(name, n) for name in (one, two) for n in range(4)]
            assert consumer.partitions == {one: [0, 1, 2, 3], two: [0, 1, 2, 3]}
            assert sorted(assigned) == sorted(everything)
        assert sorted(set(seen)) == sorted(everything)
        assert sorted(found[one]) == sorted(found[two]) == list(range(200))
        for name in (one, two):
            assert [group.behind for group in await bus.topic(name).groups()] == [0]


async def test_a_topic_with_much_does_not_hold_up_one_with_little(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus:
        much, little = bus.topic(fresh(), partitions=1), bus.topic(fresh(), partitions=1)
        await much.push_many(range(5000))
        await little.push_many(range(3))
        turns = []
        async with bus.consumer([much, little], group="g") as consumer:
            await until(lambda: consumer.partitions == {much.name: [0], little.name: [0]})
            async for batch in consumer.batches(most=1):
                turns.append(batch.topic)
                if turns.count(little.name) == 3:
                    break
        assert len(turns) < 200


async def test_members_divide_each_topic_and_hand_over(redis_url: str, fresh: Fresh) -> None:
    async with AsyncExitStack() as stack:
        buses = [await stack.enter_async_context(Bus(redis_url)) for _ in range(2)]
        one, two = await two_topics(buses[0], fresh, 0)
        revoked = []
        first = await stack.enter_async_context(buses[0].consumer([one, two], group="g"))
        first.on("revoked", lambda topic, partition: revoked.append((topic, partition)))
        await until(lambda: first.partitions == {one: [0, 1, 2, 3], two: [0, 1, 2, 3]})
        second = buses[1].consumer([one, two], group="g")
        async with second:
            await until(lambda: second.partitions == {one: [2, 3], two: [2, 3]})
            assert first.partitions == {one: [0, 1], two: [0, 1]}
            assert sorted(revoked) == sorted((name, n) for name in (one, two) for n in (2, 3))
            await buses[0].topic(one).grow(6)
            await until(lambda: second.partitions[one] == [3, 4, 5])
        await until(lambda: first.partitions == {one: [*range(6)], two: [*range(4)]})


async def test_what_is_not_acked_of_one_topic_comes_again(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        one, two = await two_topics(bus, fresh, 8)
        for rounds in range(2):
            found: dict[str, int] = {one: 0, two: 0}
            async with asyncio.timeout(UNTIL_S), bus.consumer([one, two], group="g") as consumer:
                async for batch in consumer.batches():
                    found[batch.topic] += len(batch)
                    if batch.topic == one:
                        await consumer.ack(batch)
                    if found == {one: 8 * (not rounds), two: 8}:
                        break
            with pytest.raises((StateError, QueueBusy)):
                await consumer.ack(batch)


async def test_without_a_loop(redis_url: str, fresh: Fresh) -> None:
    with (
        Bus.sync(redis_url) as bus,
        bus.topic(fresh(), partitions=2) as one,
        bus.topic(fresh(), partitions=2) as two,
    ):
        one.push_many(range(5), partition=0)
        two.push_many(range(5), partition=1)
        found = []
        with bus.consumer([one, two], group="g") as consumer:
            for batch in consumer.batches():
                found += [(batch.topic, batch.partition, each.json()) for each in batch]
                consumer.ack(batch)
                if len(found) == 10:
                    consumer.stop()
        wanted = [(name, n, k) for name, n in ((one.name, 0), (two.name, 1)) for k in range(5)]
        assert sorted(found) == sorted(wanted)


async def test_what_is_no_list_of_topics_is_refused(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        for topics in ([], ["a", "a"]):
            with pytest.raises(ConfigError, match="each once"):
                bus.consumer(topics, group="g")
        with pytest.raises(TopicMissing):
            await bus.consumer([fresh()], group="g").__aenter__()
        one, _ = await two_topics(bus, fresh, 1)
        async with bus.consumer(one, group="g") as consumer, bus.topic(one).group("h") as other:
            with pytest.raises(ConfigError, match="expected a batch of one of"):
                await consumer.ack([])  # type: ignore[arg-type]
            assert other.partitions is not None
