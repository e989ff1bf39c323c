"""Groups of a topic: who gets which partitions, in which order messages come, and what happens to
those that are not acked.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue import base_group as bus_group
from busmq_spark.bus.topics import member as bus_member
from busmq_spark.bus.topics.member import Member, OwnedPartitionMessages
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import (
    ConfigError,
    QueueBusy,
    RedisRolledBack,
    StateError,
    Unauthorized,
)
from busmq_spark.groups import topic as flows
from busmq_spark.queue.message import Message
from tests.bus.tools import UNTIL_S, redis, until
from tests.bus.topic_tools import Producer, Reader, all_read, balanced, in_order, repeated
from tests.conftest import Fresh

LONG_S = 3600.0


async def next_of(member: Member, **options: Any) -> OwnedPartitionMessages:
    return await asyncio.wait_for(anext(member.batches(**options)), UNTIL_S)


async def owns(member: Member, *partitions: int) -> None:
    await until(lambda: member.partitions == list(partitions))


async def test_members_come_and_go_and_each_message_is_handled_once_in_order(
    place: dict[str, Any], fresh: Fresh
) -> None:
    name = fresh("t")
    async with Bus(**place) as bus, bus.topic(name, 10) as topic, Producer(topic) as producer:
        seen: list[tuple[int, int, str]] = []
        readers: list[Reader] = []
        for count in (1, 3, 2, 0, 2):
            while len(readers) > count:
                await readers.pop(0).leave()
            while len(readers) < count:
                readers.append(await Reader(place, name, seen=seen).__aenter__())
            begun = producer.pushed
            await balanced(readers, 10) if count else None
            await until(lambda begun=begun: producer.pushed > begun + 5)
        await producer.__aexit__()
        await all_read(topic)
        assert [event for reader in readers for event in reader.events if event[0] == "lost"] == []
        for reader in readers:
            await reader.leave()
    assert repeated(seen) == []
    assert {text for _, _, text in seen} == {
        f"k{k}:{n}" for n in range(producer.pushed) for k in range(40)
    }
    assert in_order(seen)


async def test_of_twelve_members_of_ten_partitions_two_are_idle_and_take_over(
    place: dict[str, Any], fresh: Fresh
) -> None:
    name = fresh("t")
    async with Bus(**place) as bus, bus.topic(name, 10):
        readers = [await Reader(place, name).__aenter__() for _ in range(12)]
        await balanced(readers, 10)
        assert [reader.member.partitions for reader in readers] == [
            *([n] for n in range(10)),
            [],
            [],
        ]  # in the order in which they came
        await readers.pop(3).leave()
        await balanced(readers, 10)
        assert [len(reader.member.partitions) for reader in readers] == [1] * 10 + [0]
        for reader in readers:
            await reader.leave()


async def test_a_batch_is_of_one_partition_and_as_long_as_asked_for_and_partitions_have_their_turns(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.topic(fresh("t"), 3) as topic, topic.group("g") as member:
        for partition in range(3):
            await topic.push_many([f"{partition}:{n}" for n in range(5)], partition=partition)
        found = []
        async for batch in member.batches(most=2):
            found.append((batch.partition, [each.text for each in batch]))
            await member.ack(batch)
            if len(found) == 9:
                break
        assert {partition for partition, _ in found[:3]} == {0, 1, 2}
        for partition in range(3):
            parts = [texts for which, texts in found if which == partition]
            assert parts == [
                [f"{partition}:0", f"{partition}:1"],
                [f"{partition}:2", f"{partition}:3"],
                [f"{partition}:4"],
            ]


async def test_a_batch_that_is_not_full_waits_for_more(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.topic(fresh("t"), 1) as topic, topic.group("g") as member:
        waiting = asyncio.ensure_future(next_of(member, most=3, linger_s=10.0))
        share = await first_share(member)
        await topic.push("a")
        await until(lambda: share._position == 1)  # it has been read, and waits
        await topic.push_many("bcd")
        assert [each.text for each in await waiting] == ["a", "b", "c"]
        assert [each.text for each in await next_of(member, linger_s=0.01)] == ["d"]


async def first_share(member: Member) -> bus_member.OwnedPartition:
    await until(lambda: member._shares and member._shares[0].holds)
    return member._shares[0]


async def test_a_partition_is_given_up_when_its_batch_is_acked_and_the_others_go_on_meanwhile(
    redis_url: str, fresh: Fresh
) -> None:
    name = fresh("t")
    async with (
        Bus(redis_url) as bus,
        Bus(redis_url) as other,
        bus.topic(name, 2) as topic,
        topic.group("g") as member,
    ):
        events: list[tuple[str, int]] = []
        for event in Member.events:
            member.on(event, lambda partition, event=event: events.append((event, partition)))
        await topic.push_many("ab", partition=1)
        held = await next_of(member)
        async with other.topic(name).group("g") as second:
            await until(lambda: ("revoked", 1) in events)
            assert (member.partitions, second.partitions) == ([0], [])
            await topic.push("c", partition=0)
            batch = await next_of(member)
            assert (batch.partition, batch[0].text) == (0, "c")
            await member.ack(batch)
            assert second.partitions == []
            await topic.push("d", partition=1)
            await member.ack(held)
            await owns(second, 1)
            assert [each.text for each in await next_of(second)] == ["d"]
            with pytest.raises(QueueBusy, match="was given to another member"):
                await member.ack(held)
            assert ("lost", 1) not in events
        await owns(member, 0, 1)
        assert events == [("assigned", 0), ("assigned", 1), ("revoked", 1), ("assigned", 1)]


async def test_what_is_not_acked_until_the_lease_ends_is_lost_and_comes_again_with_the_other(
    redis_url: str, fresh: Fresh
) -> None:
    name = fresh("t")
    async with (
        Bus(redis_url) as bus,
        Bus(redis_url) as other,
        bus.topic(name, 2) as topic,
        topic.group("g") as member,
    ):
        lost: list[int] = []
        member.on("lost", lost.append)
        await topic.push_many("ab", partition=1)
        held = await next_of(member)
        share = member._shares[1]
        async with other.topic(name).group("g") as second:
            await until(
                lambda: (
                    share.leaving and share._renewing is not None and share._renewing.cancelled()
                )
            )
            share._renewed = float("-inf")  # its time is over
            share._settled.set()
            assert [each.text for each in await next_of(second)] == ["a", "b"]
            assert lost == [1]
            with pytest.raises(QueueBusy):
                await member.ack(held)


async def test_a_member_whose_lease_another_took_is_told_and_gets_it_again(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.topic(fresh("t"), 1) as topic, topic.group("g") as member:
        events: list[tuple[str, int]] = []
        for event in Member.events:
            member.on(event, lambda partition, event=event: events.append((event, partition)))
        await topic.push("a")
        held, share = await next_of(member), member._shares[0]
        await redis(
            topic.queues[0], "SET", topic.queues[0].keys.lease("g"), "another", "PX", 60_000
        )
        share._renewed = float("-inf")
        share.wake()
        await until(lambda: events[-1] == ("lost", 0))
        with pytest.raises(QueueBusy):
            await member.ack(held)
        await redis(topic.queues[0], "DEL", topic.queues[0].keys.lease("g"))
        again = await next_of(member)
        assert [each.text for each in again] == ["a"]
        with pytest.raises(QueueBusy, match="gets these messages again"):
            await member.ack(held)  # of a turn that is over
        await member.ack(again)
        assert events == [("assigned", 0), ("lost", 0), ("assigned", 0)]


async def test_a_turn_that_begins_while_a_batch_is_read_costs_a_lingering_member_no_message(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Bus(redis_url) as bus, bus.topic(fresh("t"), 1) as topic, topic.group("g") as member:
        share = await first_share(member)
        turn, read = share.turn, share._read_next_batch

        async def read_in_another_turn(most: int) -> list[Message]:
            if (
                share.turn == turn
                # The lease ended while this member waited for its slot, and another had the
                # partition
            ):
                share._acked = -1
                await share._register()
            return await read(most)

        monkeypatch.setattr(share, "_read_next_batch", read_in_another_turn)
        await topic.push_many("ab")
        batch = await next_of(member, linger_s=0.01)
        assert [message.text for message in batch] == ["a", "b"]
        await member.ack(batch)


async def test_a_lease_that_ended_unnoticed_costs_a_batch_that_was_read_ahead_nothing(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.topic(fresh("t"), 1) as topic, topic.group("g") as member:
        await topic.push_many("abcd")
        batches = member.batches(most=2)
        await member.ack(await anext(batches))
        await until(lambda: member._offered)  # read ahead
        member._shares[0]._renewed = float("-inf")
        batch = await asyncio.wait_for(anext(batches), UNTIL_S)
        assert [each.text for each in batch] == ["c", "d"]


async def test_a_hint_is_enough_to_move_partitions_of_who_leaves_and_of_who_comes(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a round nor a look at a lease is waited for."""
    monkeypatch.setattr(bus_member, "REJOIN_INTERVAL_S", 3600)
    monkeypatch.setattr(bus_member.Member, "_seconds_until_rejoin", lambda *_: 3600)
    monkeypatch.setattr(bus_member, "LEASE_POLL_S", 3600)
    monkeypatch.setattr(bus_member, "GROUP_POLL_S", 3600)
    monkeypatch.setattr(bus_group, "GROUP_POLL_S", 3600)
    name = fresh("t")
    async with (
        Bus(redis_url) as bus,
        Bus(redis_url) as other,
        bus.topic(name, 4) as topic,
        topic.group("g") as member,
    ):
        await owns(member, 0, 1, 2, 3)
        await topic.push("v", partition=3)
        held = await next_of(member)
        async with other.topic(name).group("g") as second:
            await owns(second, 2)
            share = second._shares[3]
            await until(lambda: share._entered and not share._lock.locked())
            assert not share.holds
            await member.ack(held)
            await owns(second, 2, 3)
            await topic.grow(6)
            await owns(second, 3, 4, 5)
            await owns(member, 0, 1, 2)
        await owns(member, 0, 1, 2, 3, 4, 5)


async def test_a_group_without_members_holds_up_no_other_and_misses_nothing(
    place: dict[str, Any], fresh: Fresh
) -> None:
    name = fresh("t")
    async with Bus(**place) as bus, bus.topic(name, 3) as topic:
        async with topic.group("absent"):
            pass
        async with Reader(place, name) as reader:
            for n in range(3):
                await topic.push_many(
                    [f"k{k}:{n}" for k in range(20)], keys=[f"k{k}" for k in range(20)]
                )
            await until(lambda: len(reader.seen) == 60)
        async with Reader(place, name, "absent") as late:
            await until(lambda: len(late.seen) == 60)
            assert in_order(late.seen)


async def test_a_group_that_begins_at_the_latest_misses_nothing_of_any_partition_from_then_on(
    redis_url: str, fresh: Fresh
) -> None:
    name = fresh("t")
    async with Bus(redis_url) as bus, bus.topic(name, 6) as topic:
        await topic.push_many(["old"] * 60, keys=map(str, range(60)))
        async with topic.group("g", start="latest"):
            await topic.push_many(["k:1"] * 6, keys=map(str, range(6)))
        async with topic.group("g", start="latest"):  # the group exists: it goes on
            await topic.push_many(["k:2"] * 6, keys=map(str, range(6)))
            await topic.grow(12)
            await topic.push_many(["k:3"] * 60, keys=map(str, range(60)))
        async with Reader({"url": redis_url}, name) as reader:
            await until(lambda: len(reader.seen) == 72)
            assert {text for _, _, text in reader.seen} == {"k:1", "k:2", "k:3"}


async def test_a_partition_that_another_program_added_is_read_from_its_oldest_message(
    redis_url: str, fresh: Fresh
) -> None:
    name = fresh("t")
    async with Bus(redis_url) as bus, bus.topic(name, 2) as topic, bus.queue(f"{name}/2") as plain:
        await plain.push("early")
        async with topic.group("g", start="latest") as member:
            await topic.run(
                flows.grow_topic(topic.keys, 3)
            )  # in which no group is registered beforehand
            await owns(member, 0, 1, 2)
            assert [each.text for each in await next_of(member)] == ["early"]


async def test_what_ends_the_reading_of_a_partition_is_raised_and_the_group_may_be_entered_again(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.topic(fresh("t"), 2) as topic:
        member = topic.group("g")
        async with member:
            await topic.push_many(["v"] * 5, partition=0)
            await next_of(member)
            await redis(topic.queues[0], "SET", topic.queues[0].keys.msgid, 2)
            await redis(topic.queues[0], "LTRIM", topic.queues[0].keys.messages, 0, 3)
            with pytest.raises(RedisRolledBack):
                await next_of(member)
        async with member:
            assert [each.id for each in await next_of(member)] == [1, 2]


async def test_a_redis_that_lost_the_topic_has_it_again_and_members_stay_members(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.topic(fresh("t"), 4) as topic, topic.group("g") as member:
        await owns(member, 0, 1, 2, 3)
        await redis(topic.queues[0], "DEL", topic.keys.base, topic.keys.members("g"))
        member._look.set()
        async with asyncio.timeout(UNTIL_S):
            while await topic.run(flows.read_topic(topic.keys)) != topic._last_known:
                member._look.set()
                await asyncio.sleep(0.01)
        assert member._others.keys() == {member._id}
        assert member.partitions == [0, 1, 2, 3]


async def test_a_handler_may_ack_what_is_revoked_and_may_stop(redis_url: str, fresh: Fresh) -> None:
    name = fresh("t")
    async with (
        Bus(redis_url) as bus,
        Bus(redis_url) as other,
        bus.topic(name, 2) as topic,
        topic.group("g") as member,
    ):
        await topic.push("a", partition=1)
        held = await next_of(member)

        async def save(partition: int) -> None:
            if partition == 1:
                await member.ack(held)
                member.on("assigned", stop)

        async def stop(_: int) -> None:
            await member.stop()

        member.on("revoked", save)
        async with other.topic(name).group("g") as second:
            await owns(second, 1)
            assert [each.behind for each in await topic.groups()] == [0]
        await until(lambda: not member._running)


async def test_a_stop_that_was_cancelled_is_finished_by_the_next(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.topic(fresh("t"), 2) as topic, topic.group("g") as member:
        await owns(member, 0, 1)
        told = asyncio.Event()

        async def revoked(_: int) -> None:
            told.set()
            await asyncio.sleep(LONG_S)

        member.on("revoked", revoked)
        stopping = asyncio.ensure_future(member.stop())
        await told.wait()
        stopping.cancel()
        await asyncio.wait([stopping])
        member.off("revoked", revoked)
        await asyncio.wait_for(member.stop(), UNTIL_S)
        assert [each.read for each in await topic.groups()] == [0]


async def test_what_makes_no_sense_is_told(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.topic(fresh("t"), 2) as topic:
        member = topic.group("g")
        with pytest.raises(StateError, match="not entered, or stopped"):
            await next_of(member)
        async with member:
            with pytest.raises(StateError, match="entered already"):
                await member.__aenter__()
            for options in ({"most": 0}, {"linger_s": -1}, {"linger_s": 60}):
                with pytest.raises(ConfigError):
                    await next_of(member, **options)
            with pytest.raises(ConfigError, match="expected a batch"):
                await member.ack([])  # type: ignore[arg-type]
            await topic.push("v")
            held = await next_of(member)
        with pytest.raises(StateError):
            await member.ack(held)
        async with topic.queues[1].group("mail", shared=True):
            pass
        with pytest.raises(QueueBusy, match="which is shared"):
            await topic.group("mail").__aenter__()


async def test_the_rights_of_the_page_are_enough_and_fewer_are_told(fresh: Fresh) -> None:
    page = (Path(__file__).parents[2] / "docs" / "layouts.md").read_text("utf-8")
    rules, more = (
        re.search(r"ACL SETUSER spark on >secret (.*?)\n", page),
        re.search(r"groups of a topic `(.*?)`", page),
    )
    assert rules
    assert more
    name = fresh("t")
    with EmbeddedRedis() as server:
        server.command(
            "ACL", "SETUSER", "some", "on", ">secret", *rules[1].split(), "+unsubscribe", "+hexists"
        )
        server.command(
            "ACL",
            "SETUSER",
            "all",
            "on",
            ">secret",
            *rules[1].split(),
            "+unsubscribe",
            "+hexists",
            *more[1].split(),
        )
        async with (
            Bus(server.url, user="all", password="secret") as bus,
            bus.topic(name, 3) as topic,
        ):
            async with topic.group("g") as member:
                await topic.push_many("abc", keys="123")
                for _ in {topic.partition_of(key) for key in "123"}:
                    await member.ack(await next_of(member))
                await topic.grow(4)
            assert [each.behind for each in await topic.groups()] == [0]
            await topic.seek("g", "latest")
            await topic.drop("g")
        assert server.command("ACL", "LOG") == []
        async with Bus(server.url, user="some", password="secret") as bus, bus.topic(name) as topic:
            await topic.push("v")
            with pytest.raises(Unauthorized, match="run this command"):
                await topic.group("g").__aenter__()
