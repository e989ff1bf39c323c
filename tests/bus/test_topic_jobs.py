"""Jobs over a topic: fields, outcomes and waiting as on one queue, growth, dead letters."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.jobs.job import Job
from busmq_spark.embedded import EmbeddedStandaloneServers
from busmq_spark.errors import ConfigError, JobFailed, JobTimeout, Rejected, StateError
from busmq_spark.groups import dead_letter
from tests.bus.job_tools import Held, concat, nothing
from tests.bus.tools import UNTIL_S, until
from tests.conftest import Fresh


async def made(bus: Bus, name: str, partitions: int = 4) -> None:
    await bus.topic(name, partitions=partitions).attach()


async def test_the_example_over_a_topic(place: dict[str, Any], fresh: Fresh) -> None:
    async with Bus(**place) as bus:
        await made(bus, name := fresh())
        async with bus.jobs(topic=name) as jobs, jobs.worker(group="world")(concat):
            job = jobs.new(key="customer-7")
            job["inbound"] = "Hello"
            done = await jobs.send(job, wait=["world"], timeout_s=UNTIL_S)
            assert done["world"].ok
            expected = jobs.topic.partition_of("customer-7")
            assert done["world"].queue == f"{name}/{expected}"
            found = await job.load("inbound", "outbound", forget=("outbound",))
            assert found == {"inbound": None, "outbound": "Hello world!"}
            assert (await jobs.get(job.id).outcomes()).keys() == {"world"}


async def test_many_jobs_of_all_partitions_come_back_in_their_order(
    place: dict[str, Any], fresh: Fresh
) -> None:
    async def double(job: Job) -> None:
        said = await job.load("n")
        job["twice"] = 2 * said["n"]
        await job.save()

    async with Bus(**place) as bus, Bus(**place) as other:
        await made(bus, name := fresh())
        async with AsyncExitStack() as stack:
            jobs = await stack.enter_async_context(bus.jobs(topic=name))
            far = await stack.enter_async_context(other.topic(name).jobs())
            await stack.enter_async_context(jobs.worker("g", limit=16)(double))
            await stack.enter_async_context(far.worker("g", limit=16)(double))
            some = [jobs.new(key=str(n)) for n in range(100)]
            for n, job in enumerate(some):
                job["n"] = n
            done = await jobs.send_many(some, wait=["g"], timeout_s=UNTIL_S)
            assert [each["g"].job for each in done] == [job.id for job in some]
            assert len({each["g"].queue for each in done}) == 4
            assert [(await job.load("twice"))["twice"] for job in some] == [
                2 * n for n in range(100)
            ]
            again = await far.wait_many([far.get(job.id) for job in some], ["g"], timeout_s=UNTIL_S)
            assert again == done
            in_turn = {jobs.new().id.partition("-")[0] for _ in range(8)}
            assert in_turn == {"0", "1", "2", "3"}


async def test_a_failed_job_is_a_dead_letter_of_the_topic(redis_url: str, fresh: Fresh) -> None:
    async def refuse(job: Job) -> None:
        raise Rejected("no")

    async with Bus(redis_url) as bus:
        await made(bus, name := fresh())
        async with bus.jobs(topic=name) as jobs, jobs.worker("g")(refuse):
            some = [jobs.new(partition=n) for n in range(4)]
            with pytest.raises(JobFailed, match="no"):
                await jobs.send_many(some, wait=["g"], timeout_s=UNTIL_S)
            found = await jobs.wait_many(some, ["g"], timeout_s=UNTIL_S, fail_fast=False)
            assert [each["g"].ok for each in found] == [False] * 4
            async with bus.queue(f"{name}.dead") as dead:
                read = dead.consume(remove=False, max=4)
                queues = {dead_letter.decode_letter(each.value).queue async for each in read}
            assert queues == {f"{name}/{n}" for n in range(4)}


async def test_workers_find_new_partitions_and_miss_nothing(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, Bus(redis_url) as other:
        await made(bus, name := fresh(), 1)
        async with AsyncExitStack() as stack:
            jobs = await stack.enter_async_context(bus.jobs(topic=name))
            worker = await stack.enter_async_context(jobs.worker("g", tries=2)(nothing))
            topic = await stack.enter_async_context(other.topic(name))
            async with topic.jobs() as sender:
                await topic.grow(3)
                some = [sender.new(partition=n) for n in range(3)]
                await sender.send_many(some, wait=["g"], timeout_s=UNTIL_S)
                await until(lambda: len(worker.workers) == 3)
                states = [await queue.group("g", shared=True).state() for queue in topic.queues]
                assert [state.idle for state in states] == [True] * 3


async def test_one_limit_for_all_partitions_and_pauses(redis_url: str, fresh: Fresh) -> None:
    held = Held()
    async with Bus(redis_url) as bus:
        await made(bus, name := fresh())
        async with bus.jobs(topic=name) as jobs, jobs.worker("g", limit=3)(held()) as worker:
            some = [jobs.new(partition=n % 4) for n in range(12)]
            await jobs.send_many(some)
            await until(lambda: held.now == 3)
            assert worker.running == 3
            held.go.set()
            await jobs.wait_many(some, ["g"], timeout_s=UNTIL_S)
            assert held.most == 3
            await worker.pause(timeout_s=UNTIL_S)
            await jobs.send(late := jobs.new(partition=1))
            with pytest.raises(JobTimeout):
                await jobs.wait(late, ["g"], timeout_s=0.05)
            await worker.resume()
            await jobs.wait(late, ["g"], timeout_s=UNTIL_S)
            await worker.drain(timeout_s=UNTIL_S)
            assert worker.workers == {}


async def test_completions_of_all_partitions(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, Bus(redis_url) as other:
        await made(bus, name := fresh())
        async with AsyncExitStack() as stack:
            jobs = await stack.enter_async_context(bus.jobs(topic=name, durable=True))
            theirs = await stack.enter_async_context(other.jobs(topic=name, durable=True))
            await stack.enter_async_context(jobs.worker("g")(nothing))
            own = await stack.enter_async_context(jobs.completions())
            every = await stack.enter_async_context(theirs.completions(name))
            mine, others = (
                [jobs.new(partition=n) for n in range(4)],
                [theirs.new() for _ in range(2)],
            )
            await jobs.send_many(mine)
            await theirs.send_many(others)
            async with asyncio.timeout(UNTIL_S):
                assert {(await anext(own)).job for _ in mine} == {job.id for job in mine}
                ids = {job.id for job in (*mine, *others)}
                assert {(await anext(every)).job for _ in ids} == ids
                stored = jobs.completions(group="audit")
                assert {(await anext(stored)).job for _ in ids} == ids
                await stored.aclose()


async def test_one_server_away_stops_its_partitions_only(fresh: Fresh, impatient: None) -> None:
    with EmbeddedStandaloneServers(2) as servers:
        async with Bus(",".join(servers.urls)) as bus:
            await made(bus, name := fresh(), 2)
            async with bus.jobs(topic=name) as jobs, jobs.worker("g")(nothing):
                servers.servers[jobs.topic.queues[1].server].kill()
                there = jobs.new(partition=0)
                await jobs.send(there, wait=["g"], timeout_s=UNTIL_S)


async def test_calls_that_cannot_be_are_refused(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        await made(bus, name := fresh(), 2)
        for wrong in ({}, {"name": "a", "topic": name}, {"topic": name, "cap": 3}, {"topi": 1}):
            with pytest.raises(ConfigError):
                bus.jobs(**wrong)  # type: ignore[call-overload]
        jobs = bus.jobs(topic=name)
        with pytest.raises(StateError, match="async with"):
            jobs.new()
        async with jobs, bus.jobs(fresh()) as plain:
            with pytest.raises(ConfigError, match="begin with a partition"):
                jobs.get("abc")
            with pytest.raises(ConfigError, match="begin with a partition"):
                jobs.get("7-abc")
            with pytest.raises(ConfigError, match=r"jobs\.new"):
                await jobs.send(plain.new())
            with pytest.raises(ConfigError, match="group_limit"):
                jobs.worker("g", group_limit=3)
            with pytest.raises(ConfigError):
                jobs.new(partition=2)
            with pytest.raises(ConfigError, match="no group 'g' to wait for"):
                await jobs.send(jobs.new(), wait=["g"])


async def test_workers_of_a_topic_and_of_a_queue_share_a_limit(
    redis_url: str, fresh: Fresh
) -> None:
    held = Held()
    async with Bus(redis_url) as bus:
        await made(bus, name := fresh(), 2)
        async with bus.jobs(topic=name) as over, bus.jobs(fresh()) as plain:
            group = bus.workers(over.worker("g")(held()), plain.worker("g")(held()), limit=2)
            async with group:
                await over.send_many([over.new(partition=n) for n in (0, 1)])
                await plain.send(plain.new())
                await until(lambda: held.now == 2)
                held.go.set()
                await until(lambda: len(held.ended) == 3)
        assert held.most == 2


async def test_without_a_loop(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        await made(bus, name := fresh(), 2)
        async with bus.jobs(topic=name) as jobs, jobs.worker("g")(nothing):

            def ask() -> bool:
                with Bus.sync(redis_url) as sync, sync.jobs(topic=name) as sender:
                    job = sender.new(key="a")
                    job["field"] = 1
                    return bool(sender.send(job, wait=["g"], timeout_s=UNTIL_S)["g"].ok)

            assert await asyncio.to_thread(ask)
