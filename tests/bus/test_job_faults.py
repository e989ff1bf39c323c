"""Jobs while something breaks: replies that are lost, packets that come late, workers, waiters and
servers that are killed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.jobs import job
from busmq_spark.bus.jobs.jobs import Jobs
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import JobFailed, LinkLost
from busmq_spark.queue.keys import client_channel
from busmq_spark.redis_io.pubsub_connection import PubSubConnection
from tests.bus.group_tools import end_leases
from tests.bus.job_tools import LONG_S, Held, held_ends, letters, nothing, until_none
from tests.bus.killable import Killable
from tests.bus.tools import UNTIL_S, redis, until
from tests.conftest import Fresh
from tests.faults.proxy import Command, Proxy

pytestmark = pytest.mark.fault


async def started(place: dict[str, Any], *words: object) -> Killable:
    return await Killable.start("job_process", place, *words)


def of_job(name: str) -> Callable[[Command], bool]:
    return lambda command: command.name == name and any("bus:job:" in key for key in command.keys)


def writes_an_outcome(command: Command) -> bool:
    return of_job("job_outcome")(command) and any(command.args[6::5])


async def waiting_for(jobs: Jobs, **fields: Any) -> tuple[Any, asyncio.Future[Any]]:
    job = jobs.new()
    for name, value in fields.items():
        job[name] = value
    return job, asyncio.ensure_future(jobs.send(job, wait=["g"], timeout_s=UNTIL_S))


async def test_a_field_is_had_also_when_the_reply_that_forgot_it_is_lost(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    with Proxy(redis_server.port) as proxy:
        async with Bus(proxy.url) as bus, bus.jobs(fresh()) as jobs:
            job = jobs.new()
            job["a"] = b"once"
            await job.save()
            gate = proxy.hold(of_job("job_load"), reply=True)
            loading = asyncio.ensure_future(job.load("a", forget=("a",)))
            (await asyncio.to_thread(gate.wait)).drop()
            gate.open()
            assert await loading == {"a": b"once"}
            assert await job.load("a") == {"a": None}


async def test_a_load_that_arrives_late_takes_nothing_that_was_saved_meanwhile(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    with Proxy(redis_server.port) as proxy:
        async with Bus(proxy.url) as bus, bus.jobs(fresh()) as jobs:
            job = jobs.new()
            job["a"] = 1
            await job.save()
            gate = proxy.hold(of_job("job_load"))
            loading = asyncio.ensure_future(job.load("a", forget=("a",)))
            late = await asyncio.to_thread(gate.wait)
            gate.open()
            late.cut()
            assert await loading == {"a": 1}
            job["a"] = 2
            await job.save()
            await asyncio.to_thread(late.arrive)
            assert await job.load("a") == {"a": 2}


async def test_an_outcome_whose_reply_is_lost_is_written_once_and_acked(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    with Proxy(redis_server.port) as proxy:
        async with Bus(proxy.url) as bus, bus.jobs(fresh()) as jobs:
            calls: Counter[str] = Counter()

            async def count(job: Any) -> None:
                calls[job.id] += 1

            async with jobs.worker("g", lease_s=600)(count):
                gate = proxy.hold(writes_an_outcome, reply=True)
                _, waiting = await waiting_for(jobs)
                (await asyncio.to_thread(gate.wait)).drop()
                gate.open()
                assert (await waiting)["g"].ok
                await held_ends(jobs, "g")
            assert list(calls.values()) == [1]


async def test_an_outcome_that_arrives_when_another_works_on_the_job_is_refused(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    """A worker that was cut off says that the job has failed, while the next one is at work."""
    slow, quick = Held(), Held()

    async def fails(job: Any) -> None:
        await slow()(job)
        raise ValueError("too late")

    with Proxy(redis_server.port) as proxy:
        async with (
            Bus(proxy.url) as bus,
            Bus(redis_server.url) as other,
            other.jobs(fresh()) as jobs,
        ):
            cut_off = bus.jobs(jobs.queue.name).worker("g", lease_s=600, tries=1)(fails)
            async with cut_off:
                job, waiting = await waiting_for(jobs)
                await until(lambda: slow.begun)
                gate = proxy.hold(writes_an_outcome)
                slow.go.set()
                late = await asyncio.to_thread(gate.wait)
                late.cut()
                await end_leases(jobs.queue, "g")
                async with jobs.worker("g", lease_s=600, tries=5)(quick()):
                    await until(lambda: quick.begun)
                    await asyncio.to_thread(late.arrive)
                    assert await job.outcomes() == {}
                    gate.open()
                    quick.go.set()
                    assert (await waiting)["g"].ok


async def test_a_waiter_whose_connection_is_cut_hears_of_what_it_has_missed(
    place: dict[str, Any], fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are cut: its subscription while the outcome is published, and the link that it reads
    with.
    """
    held, connect, gate = Held(), PubSubConnection._connect, asyncio.Event()
    monkeypatch.setattr(job, "OUTCOME_POLL_S", LONG_S)

    async def late(connection: PubSubConnection) -> None:
        await gate.wait()
        await connect(connection)

    async with (  # noqa: SIM117  # too long
        Bus(**place) as bus,
        Bus(**place) as other,
        bus.jobs(fresh()) as jobs,
    ):
        async with other.jobs(jobs.queue.name).worker("g")(held()):
            _, waiting = await waiting_for(jobs)
            await until(lambda: held.begun)
            monkeypatch.setattr(PubSubConnection, "_connect", late)
            for link in (*bus.servers.pubsub, *bus.servers.commands):
                link.drop()
            held.go.set()
            await held_ends(other.jobs(jobs.queue.name), "g")
            assert not waiting.done()
            gate.set()
            assert (await waiting)["g"].ok


async def test_nobody_listens_and_the_outcome_is_found_all_the_same(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, Bus(redis_url) as other, bus.jobs(fresh()) as jobs:
        held = Held()
        async with other.jobs(jobs.queue.name).worker("g")(held()):
            _, waiting = await waiting_for(jobs)
            await until(lambda: held.begun)
            bus.servers.pubsub[0].unsubscribe(
                client_channel(jobs.client), jobs._waits.on_publication
            )  # as a half-open link
            held.go.set()
            assert (await waiting)["g"].ok


async def test_a_killed_worker_s_jobs_are_another_s_and_in_the_end_dead_letters(
    place: dict[str, Any], fresh: Fresh
) -> None:
    async with Bus(**place) as bus, bus.jobs(fresh()) as jobs:
        some = [jobs.new() for _ in range(5)]
        for job in some:
            job["hold"] = True
            await jobs.send(job)
        first = await started(place, "work", jobs.queue.name, 2, 5, 0, 600)
        await until(lambda: len(first.said) == 5)
        assert {tuple(each) for each in await first.kill()} == {(job.id, 1) for job in some}
        await end_leases(jobs.queue, "g")
        second = await started(place, "work", jobs.queue.name, 2, 5, 0, 600)
        await until(lambda: len(second.said) == 5)
        waiting = [asyncio.ensure_future(job.wait("g", timeout_s=UNTIL_S)) for job in some]
        assert {tuple(each) for each in await second.kill()} == {(job.id, 2) for job in some}
        await end_leases(jobs.queue, "g")
        async with jobs.worker("g", lease_s=1, tries=2)(nothing):
            for each in waiting:
                with pytest.raises(JobFailed, match="its lease ended, and so did its tries"):
                    await each
            await held_ends(jobs, "g")
            assert sorted(letter.tries for letter in await letters(jobs)) == [2] * 5


async def test_a_limit_of_the_group_holds_in_three_processes(
    place: dict[str, Any], fresh: Fresh
) -> None:
    async with Bus(**place) as bus, bus.jobs(fresh()) as jobs:
        some = [jobs.new() for _ in range(200)]
        some[-1]["hold"] = True  # in flight to the end, however late it is asked for
        for job in some:
            await jobs.send(job)
        workers = [await started(place, "work", jobs.queue.name, 50, 16, 2, 60) for _ in range(3)]
        await until_none(lambda: no_groups(jobs))
        seen = []
        while sum(len(each.said) for each in workers) < 200:
            seen.append((await jobs.queue.groups())[0].in_flight)
        seen.append((await jobs.queue.groups())[0].in_flight)
        for job in some[:-1]:
            await job.wait("g", timeout_s=UNTIL_S)
        said = [await each.kill() for each in workers]
        assert sorted(id for each in said for id, _ in each) == sorted(job.id for job in some)
        assert 0 < max(seen) <= 2


async def test_a_waiter_is_killed_and_another_process_waits_on(
    place: dict[str, Any], fresh: Fresh
) -> None:
    held = Held()
    async with Bus(**place) as bus, bus.jobs(fresh()) as jobs, jobs.worker("g")(held()):
        waiter = await started(place, "wait", jobs.queue.name)
        await until(lambda: held.begun)
        [id] = await waiter.kill()
        waiting = asyncio.ensure_future(jobs.get(id).wait("g", timeout_s=UNTIL_S))
        held.go.set()
        assert (await waiting)["g"].ok


async def test_workers_and_redis_are_killed_and_each_job_has_one_outcome(fresh: Fresh) -> None:
    with EmbeddedRedis(aof=True) as server:
        place = {"url": server.url}
        async with Bus(**place) as bus, bus.jobs(fresh()) as jobs:
            workers = [await started(place, "work", jobs.queue.name, 50, 4) for _ in range(2)]
            published: list[str] = []
            await until_none(lambda: no_groups(jobs))
            async with jobs.completions(jobs.queue.name) as completions:
                following = asyncio.ensure_future(follow(completions, published))
                waiting: list[tuple[Any, asyncio.Future[Any]]] = []
                for turn in range(4):
                    begun = sum(len(each.said) for each in workers)
                    for _ in range(20):
                        with suppress(LinkLost):
                            waiting.append(await sent(jobs))
                    await until(lambda begun=begun: begun < sum(len(each.said) for each in workers))
                    await workers[turn % 2].kill()
                    if turn == 1:
                        await asyncio.to_thread(server.kill)
                        await asyncio.to_thread(server.restart)
                    workers[turn % 2] = await started(place, "work", jobs.queue.name, 50, 4)
                done = await asyncio.gather(*(each for _, each in waiting))
                following.cancel()
            for worker in workers:
                await worker.kill()
            assert len(waiting) == 80
            assert all(each["g"].ok for each in done)
            assert [id for id, times in Counter(published).items() if times > 1] == []
            assert all([(await job.load("count"))["count"] for job, _ in waiting])


async def sent(jobs: Jobs) -> tuple[Any, asyncio.Future[Any]]:
    job = jobs.new()
    await jobs.send(job)
    return job, asyncio.ensure_future(job.wait("g", timeout_s=UNTIL_S))


async def no_groups(jobs: Jobs) -> bool:
    return not await jobs.queue.groups()


async def follow(completions: Any, ids: list[str]) -> None:
    async for each in completions:
        ids += [each.job]


async def test_outcomes_come_also_where_another_program_has_made_the_queue_anew(
    redis_url: str, fresh: Fresh
) -> None:
    """Redis has lost it. Who comes second finds a queue, and cannot tell from a push that this is
    another one.
    """
    async with Bus(redis_url) as bus, Bus(redis_url) as other, bus.jobs(fresh()) as jobs:
        before = jobs.queue.life
        await redis(jobs.queue, "DEL", *jobs.queue.keys.all)
        async with other.jobs(jobs.queue.name).worker("g")(nothing):
            for _ in range(2):
                done = await jobs.send(jobs.new(), wait=["g"], timeout_s=UNTIL_S)
                assert done["g"].life != before
            assert (
                len(await jobs.send_many([jobs.new(), jobs.new()], wait=["g"], timeout_s=UNTIL_S))
                == 2
            )
