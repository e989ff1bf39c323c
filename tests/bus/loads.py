"""A topic, a group, jobs and an outbox at work, while a test breaks something: ``flow`` waits for
more of each, and at the end all must be done.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from busmq_spark import Outbox
from busmq_spark.bus.bus import Bus
from busmq_spark.bus.jobs.job import Job
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.queue.shared_group import SharedGroup
from busmq_spark.errors import LinkLost
from busmq_spark.groups import dead_letter
from busmq_spark.groups.job import JobOutcome
from busmq_spark.queue.keys import QueueKeys, TopicKeys
from tests.bus.group_tools import dead_letters
from tests.bus.job_tools import until_none
from tests.bus.lost_servers import Servers
from tests.bus.tools import LONG_S, UNTIL_S, redis, until
from tests.bus.topic_tools import Producer, Reader, all_read, balanced, in_order
from tests.conftest import Fresh

HOUR_S = 3600
PACE_S = 0.01
PARTITIONS = 4


class SharedLoad:
    """A shared group of two holders, and messages of which some are given up."""

    def __init__(self, buses: list[Bus], name: str, lease_s: float = LONG_S) -> None:
        self.queue: Queue = buses[0].queue(name)
        self._buses, self._name, self._lease_s = buses, name, lease_s
        self.seen: list[tuple[int, int]] = []
        """What has come, by id and try."""
        self._acked: list[tuple[int, int]] = []
        self._bad: set[int] = set()
        self._enough = False

    async def __aenter__(self) -> SharedLoad:
        self._stack = AsyncExitStack()
        self._groups: list[SharedGroup] = []
        for queue in (self.queue, self._buses[1].queue(self._name)):
            await self._stack.enter_async_context(queue)
            self._groups.append(
                await self._stack.enter_async_context(
                    queue.group("g", shared=True, lease_s=self._lease_s)
                )
            )
        self._tasks = [
            asyncio.ensure_future(work) for work in (self._push(), *map(self._read, self._groups))
        ]
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._enough = True
        await self._stack.__aexit__(*error)
        await asyncio.gather(*self._tasks)

    async def _push(self) -> None:
        for turn in count():
            if self._enough:
                return
            with suppress(LinkLost):
                await self.queue.push_many([b"bad" if turn % 20 == 0 else b"v", *[b"v"] * 9])
            await asyncio.sleep(PACE_S)

    async def _read(self, group: SharedGroup) -> None:
        async for batch in group.batches(20):
            self.seen += [(each.id, each.tries) for each in batch]
            bad, good = (
                [each for each in batch if each.value == b"bad"],
                [each for each in batch if each.value != b"bad"],
            )
            self._bad |= {each.id for each in bad}
            await group.reject(bad, "bad")
            refused = await group.ack(good)
            self._acked += [(each.id, each.tries) for each in good if each not in refused]

    async def flows(self) -> None:
        wanted = len(self.seen) + 100
        await until(lambda: len(self.seen) > wanted)

    async def finish(self) -> None:
        """Each message has come, no try of one twice; who had it last has acked it, once; and dead
        letters are those that were given up.
        """
        self._enough = True
        await self._tasks[0]
        await asyncio.wait_for(self._groups[0].wait_idle(), UNTIL_S)
        last = int(await redis(self.queue, "GET", self.queue.keys.msgid))
        assert {id for id, _ in self.seen} == {*range(1, last + 1)}
        assert len({*self.seen}) == len(self.seen)
        latest = dict(sorted(self.seen))
        assert sorted(self._acked) == [
            (id, tries) for id, tries in latest.items() if id not in self._bad
        ]
        async with self._buses[0].queue(f"{self._name}.dead") as dead:
            assert {
                dead_letter.decode_letter(each.value).id
                for each in await dead_letters(dead, await dead.count())
            } == self._bad


class TopicLoad:
    """A topic, its producer, and two members of a group."""

    def __init__(self, buses: list[Bus], place: dict[str, Any], name: str) -> None:
        self.topic = buses[0].topic(name, PARTITIONS)
        self._place, self._name = place, name
        self.seen: list[tuple[int, int, str]] = []

    async def __aenter__(self) -> TopicLoad:
        self._stack = AsyncExitStack()
        await self._stack.enter_async_context(self.topic)
        self.readers = [await self._stack.enter_async_context(self._reader()) for _ in range(2)]
        self._producer = await self._stack.enter_async_context(
            Producer(self.topic, keys=8, pause_s=PACE_S)
        )
        await balanced(self.readers, PARTITIONS)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)

    def _reader(self) -> Reader:
        return Reader(self._place, self._name, seen=self.seen, refused=True)

    async def flows(self) -> None:
        """Also out of every partition, and to a member that comes and goes."""
        before = Counter(partition for partition, *_ in self.seen)
        async with self._reader() as third:
            await balanced([*self.readers, third], PARTITIONS)
        await balanced(self.readers, PARTITIONS)
        await until(
            lambda: all(
                count > before[partition]
                for partition, count in Counter(each[0] for each in self.seen).items()
            )
        )

    async def finish(self) -> None:
        """Each message has come, in order."""
        await self._producer.__aexit__()
        await all_read(self.topic)
        assert in_order(self.seen)
        for partition, queue in enumerate(self.topic.queues):
            last = int(await redis(queue, "GET", queue.keys.msgid))
            assert {id for which, id, _ in self.seen if which == partition} == {*range(1, last + 1)}


class JobLoad:
    """Jobs, which wait for their outcomes, and two workers."""

    def __init__(self, buses: list[Bus], name: str, lease_s: float = LONG_S) -> None:
        self.jobs, self._other = (bus.jobs(name, outcome_ttl_s=24 * HOUR_S) for bus in buses)
        self.handled: Counter[str] = Counter()
        self._lease_s = lease_s
        self._waits: list[asyncio.Future[dict[str, JobOutcome]]] = []
        self._enough = False

    async def __aenter__(self) -> JobLoad:
        self._stack = AsyncExitStack()
        for jobs in (self.jobs, self._other):
            await self._stack.enter_async_context(jobs)
            await self._stack.enter_async_context(
                jobs.worker("g", lease_s=self._lease_s)(self._handle)
            )
        self._sending = asyncio.ensure_future(self._send())
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._enough = True
        await self._sending
        await self._stack.__aexit__(*error)

    async def _handle(self, job: Job) -> None:
        said = await job.load("n")
        job["twice"] = 2 * said["n"]
        await job.save()
        self.handled[job.id] += 1

    async def _send(self) -> None:
        while not self._enough:
            with suppress(LinkLost):
                job = self.jobs.new()
                job["n"] = 1
                await self.jobs.send(job)
                self._waits.append(asyncio.ensure_future(job.wait("g", timeout_s=UNTIL_S)))
            await asyncio.sleep(PACE_S)

    async def flows(self) -> None:
        wanted = len(self.handled) + 20
        await until(lambda: len(self.handled) > wanted)

    async def finish(self) -> None:
        """Each job that was sent is done."""
        self._enough = True
        await self._sending
        for done in await asyncio.gather(*self._waits):
            assert done["g"].ok
            assert await self.jobs.get(done["g"].job).load("twice") == {"twice": 2}


class OutboxLoad:
    """An outbox that numbers what it forwards."""

    def __init__(self, buses: list[Bus], place: dict[str, Any], path: Path, name: str) -> None:
        self._queue = buses[0].queue(name)
        self._outbox = Outbox(path, to=place["url"], layout=place["layout"])
        self._kept = 0
        self._enough = False

    async def __aenter__(self) -> OutboxLoad:
        self._stack = AsyncExitStack()
        await self._stack.enter_async_context(self._outbox)
        await self._stack.enter_async_context(self._queue)
        self._pushing = asyncio.ensure_future(self._push())
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._enough = True
        await self._pushing
        await self._stack.__aexit__(*error)

    async def _push(self) -> None:
        while not self._enough:
            await self._outbox.push(self._queue.name, self._kept)
            self._kept += 1
            await asyncio.sleep(PACE_S)

    async def flows(self) -> None:
        wanted = await self._queue.count() + 20
        await until_none(lambda: self._less_than(wanted))

    async def _less_than(self, wanted: int) -> bool:
        return await self._queue.count() < wanted

    async def finish(self) -> None:
        """Each message is there, once, in order."""
        self._enough = True
        await self._pushing
        await self._outbox.wait_drained(UNTIL_S)
        assert [
            each.json() async for each in self._queue.consume(max=await self._queue.count())
        ] == [*range(self._kept)]


Load = TopicLoad | SharedLoad | JobLoad | OutboxLoad
Loads = tuple[TopicLoad, SharedLoad, JobLoad, OutboxLoad]


@asynccontextmanager
async def loads(
    servers: Servers, folder: Path, fresh: Fresh, lease_s: float = LONG_S
) -> AsyncIterator[Loads]:
    """All of them, at work, and at the end all is done."""
    async with Bus(**servers.place) as one, Bus(**servers.place) as other:
        buses, place, name = [one, other], servers.place, fresh()
        near = partial(servers.beside, QueueKeys(name, True).metadata, fresh)
        names = [near(lambda name: QueueKeys(name, True).metadata) for _ in range(2)]
        topic = TopicLoad(buses, place, near(lambda name: TopicKeys(name, True).base))
        shared, jobs = SharedLoad(buses, name, lease_s), JobLoad(buses, names[0], lease_s)
        async with (
            topic,
            shared,
            jobs,
            OutboxLoad(buses, place, folder / "outbox.db", names[1]) as outbox,
        ):
            await flow(topic, shared, jobs, outbox)
            yield topic, shared, jobs, outbox
            for each in (topic, shared, jobs, outbox):
                await each.finish()


async def flow(*some: Load) -> None:
    """Returns when all of them have gone on."""
    await asyncio.gather(*(each.flows() for each in some))
