"""Groups of a topic while something breaks: members and servers that are killed, replies that are
lost, packets that come late.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedRedis, EmbeddedStandaloneServers
from busmq_spark.errors import LinkLost
from busmq_spark.groups import topic as flows
from busmq_spark.queue.command_generators import command
from tests.bus.killable import Killable
from tests.bus.tools import UNTIL_S, redis, until
from tests.bus.topic_tools import Producer, Reader, all_read, balanced, in_order, repeated
from tests.conftest import Fresh
from tests.faults.proxy import Command, Proxy
from tests.layouts import LAYOUTS, servers_of

pytestmark = pytest.mark.fault


class Worker(Killable):
    """A process that is a member."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.handled: list[tuple[int, int, str, float]] = []
        """Partition, id, text and time of what it has begun to handle."""
        self.acked: dict[int, int] = {}
        """Partition → up to which id it has acked."""

    def heard(self, said: Any) -> None:
        partition, what, *at = said
        if at:
            self.handled += [(partition, id, text, at[0]) for id, text in what]
        else:
            self.acked[partition] = what


def check(workers: list[Worker], producer: Producer) -> None:
    """Everything was handled, in order; nothing that was acked came again, and nothing was handled
    by two workers that lived.
    """
    seen = sorted(
        (at, partition, id, text)
        for worker in workers
        for partition, id, text, at in worker.handled
    )
    assert in_order([(partition, id, text) for _, partition, id, text in seen])
    assert {text for *_, text in seen} >= {
        f"k{k}:{n}" for n in range(producer.pushed) for k in range(40)
    }
    times: dict[tuple[int, int], list[tuple[float, Worker]]] = defaultdict(list)
    for worker in workers:
        for partition, id, _, at in worker.handled:
            times[partition, id].append((at, worker))
    for (partition, id), its in times.items():
        its.sort(key=lambda one: one[0])
        for (_, first), (again, second) in pairwise(its):
            assert first is not second
            assert again > first.killed_at, "handled by another while its owner lived"
            assert first.acked.get(partition, 0) < id, "handled again though it was acked"


async def test_members_are_killed_under_load_and_each_message_is_handled_in_order(
    layout: str, place: dict[str, Any], fresh: Fresh
) -> None:
    name = fresh("t")
    members, kills = (3, 4) if layout == "direct" else (2, 2)
    async with Bus(**place) as bus, bus.topic(name, 10) as topic, Producer(topic) as producer:
        workers = [await Worker.start("topic_worker", place, name, "g") for _ in range(members)]
        for turn in range(kills):
            worker = workers[-members]
            begun = len(worker.handled)
            await until(lambda worker=worker, begun=begun: len(worker.handled) > begun + 20)
            await worker.kill()
            workers.append(await Worker.start("topic_worker", place, name, "g"))
            others = workers[-members:] if turn % 2 else workers[-members:-1]
            counts = [len(other.handled) for other in others]
            await until(
                lambda others=others, counts=counts: all(
                    len(o.handled) > n for o, n in zip(others, counts, strict=True)
                )
            )
        await producer.__aexit__()
        await all_read(topic)
        for worker in workers:
            await worker.kill()
    check(workers, producer)


async def test_the_partitions_of_a_member_of_another_machine_move_when_its_lease_ends(
    request: pytest.FixtureRequest, fresh: Fresh
) -> None:
    """On every layout, and on all of them together: a lease lasts."""
    places = [servers_of(layout, request.getfixturevalue) for layout in LAYOUTS]
    async with asyncio.TaskGroup() as together:
        for place in places:
            together.create_task(wait_for_the_lease(place, fresh("t")))


async def wait_for_the_lease(place: dict[str, Any], name: str) -> None:
    async with (
        Bus(**place) as bus,
        bus.topic(name, 4) as topic,
        Producer(topic, pause_s=0.05) as producer,
    ):
        far = await Worker.start("topic_worker", place, name, "g", "another machine")
        await until(lambda: len({partition for partition, *_ in far.handled}) == 4)
        async with Reader(place, name) as reader:
            await until(lambda: reader.member.partitions == [2, 3])
            await far.kill()
            lease = await redis(topic.queues[0], "PTTL", topic.queues[0].keys.lease("g"))
            assert lease > 0
            await balanced([reader], 4)
            await producer.__aexit__()
            await all_read(topic)
        events = [event for event in reader.events if event[0] != "assigned"]
    assert [event for event in events if event[0] == "lost"] == []
    assert repeated(reader.seen) == []
    first = {
        partition: min(id for which, id, _ in reader.seen if which == partition)
        for partition in (0, 1)
    }
    assert all(id > far.acked[partition] for partition, id in first.items())


@pytest.mark.usefixtures("impatient")
async def test_a_server_is_killed_and_its_partitions_pause_while_the_others_flow(
    fresh: Fresh,
) -> None:
    """Each of two, so also the one that knows of the topic."""
    with EmbeddedStandaloneServers(2, aof=True) as group:
        url, name = ",".join(group.urls), fresh("t")
        async with Bus(url) as bus, bus.topic(name, 4) as topic:
            async with Reader({"url": url}, name) as one, Reader({"url": url}, name) as two:
                await balanced([one, two], 4)
                for index, server in enumerate(group.servers):
                    await asyncio.to_thread(server.kill)
                    await until(lambda index=index: not bus.servers.ready[index])
                    turns = {(await topic.push(f"k{index}:{n}")).partition for n in range(8)}
                    assert turns == {
                        1 - index,
                        3 - index,
                    }  # what has no key goes to those that are there
                    with pytest.raises(LinkLost) as lost:
                        await topic.push_many(
                            [f"a:{index}", f"b:{index}"],
                            keys=[key_of(topic, index), key_of(topic, 1 - index)],
                        )
                    assert [
                        place and place.partition for place in lost.value.details["placed"]
                    ] == [None, 1 - index]
                    seen = [*one.seen, *two.seen]
                    assert {
                        partition for partition, _, text in seen if text.startswith(f"k{index}")
                    } <= turns
                    await until(
                        lambda index=index: (
                            len(
                                {
                                    t
                                    for _, _, t in (*one.seen, *two.seen)
                                    if t.startswith(f"k{index}:")
                                }
                            )
                            == 8
                        )
                    )
                    await asyncio.to_thread(server.restart)
                    await until(lambda index=index: bus.servers.ready[index])
                    placed = await topic.push_many(
                        [f"c:{index}"] * 4,
                        keys=[key_of(topic, partition) for partition in range(4)],
                    )
                    assert [place.partition for place in placed] == [0, 1, 2, 3]
                    await until(
                        lambda index=index: (
                            [t for _, _, t in (*one.seen, *two.seen)].count(f"c:{index}") == 4
                        )
                    )
                    await all_read(
                        topic
                    )  # an ack that meets the next dead server would end its reader
                await balanced([one, two], 4)
            assert repeated([*one.seen, *two.seen]) == []


def key_of(topic: object, partition: int) -> str:
    return next(key for key in map(str, range(1000)) if flows.partition_of(key, 4) == partition)


@pytest.mark.usefixtures("impatient")
async def test_a_topic_is_attached_while_a_server_is_away_and_has_its_partitions_when_it_is_back(
    fresh: Fresh,
) -> None:
    with EmbeddedStandaloneServers(2, aof=True) as group:
        url = ",".join(group.urls)
        async with Bus(url) as bus:
            names = [fresh("t") for _ in range(20)]
            name = next(each for each in names if bus.topic(each, 4).server == 0)
            lost = next(each for each in names if bus.topic(each, 4).server == 1)
            await asyncio.to_thread(group.servers[1].kill)
            await until(lambda: not bus.servers.ready[1])
            with pytest.raises(LinkLost):
                await bus.topic(lost, 4).attach()
            async with bus.topic(name, 4) as topic, topic.group("g", start="latest") as member:
                assert [queue.attached for queue in topic.queues] == [True, False, True, False]
                await until(lambda: member.partitions == [0, 2])
                await asyncio.to_thread(group.servers[1].restart)
                await until(lambda: member.partitions == [0, 1, 2, 3])
                await topic.push("v", partition=3)
                batch = await asyncio.wait_for(anext(member.batches()), UNTIL_S)
                assert (batch.partition, batch[0].text) == (3, "v")


def is_script(name: str, topic: str) -> Callable[[Command], bool]:
    def matches(command: Command) -> bool:
        return command.name == name and any(topic in key for key in command.keys)

    return matches


async def test_a_reply_to_a_member_that_was_lost_changes_nothing(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    name = fresh("t")
    with Proxy(redis_server.port) as proxy:
        place, far = {"url": redis_server.url}, {"url": proxy.url}
        async with (
            Bus(redis_server.url) as bus,
            bus.topic(name, 4),
            Reader(place, name) as other,
            Reader(far, name) as reader,
        ):
            await balanced([reader, other], 4)
            gate = proxy.hold(is_script("topic_member", name), reply=True)
            reader.member._look.set()
            (await asyncio.to_thread(gate.wait)).drop()
            gate.open()
            heard = reader.member._heard
            await until(lambda: reader.member._heard > heard)
            await balanced([reader, other], 4)
            assert [event for event in (*reader.events, *other.events) if event[0] == "lost"] == []


async def test_a_member_that_left_and_is_heard_of_late_is_missed_again(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    """Its packet arrives after it has left: until its time is over nobody has its partitions."""
    name = fresh("t")
    with Proxy(redis_server.port) as proxy:
        async with (
            Bus(redis_server.url) as bus,
            bus.topic(name, 4) as topic,
            Reader({"url": redis_server.url}, name) as other,
        ):
            reader = await Reader({"url": proxy.url}, name).__aenter__()
            await balanced([other, reader], 4)
            gate = proxy.hold(is_script("topic_member", name))
            reader.member._look.set()
            late = await asyncio.to_thread(gate.wait)
            gate.open()
            late.cut()
            ghost = reader.member._id
            await reader.leave()
            await balanced([other], 4)
            await asyncio.to_thread(late.arrive)
            await until(lambda: ghost in other.member._others)
            await redis(
                topic.queues[0], "ZADD", topic.keys.members("g"), "XX", 1, ghost
            )  # its time is over
            other.member._look.set()
            await balanced([other], 4)


async def test_a_redis_that_is_full_hands_partitions_over(fresh: Fresh) -> None:
    name = fresh("t")
    with EmbeddedRedis() as server:
        async with Bus(server.url) as bus, bus.topic(name, 4) as topic:
            await topic.push_many(
                [f"k{n % 7}:{n}" for n in range(100)], keys=[f"k{n % 7}" for n in range(100)]
            )
            async with topic.group("g"):
                pass
            await bus.servers.commands[0].execute(command("CONFIG", "SET", "maxmemory", 1))
            async with Reader({"url": server.url}, name) as one:
                await balanced([one], 4)
                async with Reader({"url": server.url}, name) as two:
                    await balanced([one, two], 4)
                    await until(lambda: len(one.seen) + len(two.seen) == 100)
            assert in_order(one.seen)
            assert [each.behind for each in await topic.groups()] == [0]
