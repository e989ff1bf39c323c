"""Jobs handed back by their handlers, and groups that go back to jobs that are done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from busmq_spark import Released
from busmq_spark.bus.bus import Bus
from busmq_spark.bus.jobs.job import Job
from busmq_spark.errors import ConfigError, QueueBusy
from tests.bus.job_tools import Held, letters, nothing
from tests.bus.tools import UNTIL_S, until
from tests.conftest import Fresh


@pytest.mark.parametrize("how", ["raise", "call"])
async def test_a_job_that_is_handed_back_counts_no_try(
    place: dict[str, Any], fresh: Fresh, how: str
) -> None:
    tries: list[int] = []

    async def busy(job: Job) -> None:
        tries.append(job.tries)
        if len(tries) < 5 and how == "raise":
            raise Released("not yet")
        if len(tries) < 5:
            job.release()

    async with Bus(**place) as bus, bus.jobs(fresh()) as jobs, jobs.worker("g", tries=1)(busy):
        done = await jobs.send(jobs.new(), wait=["g"], timeout_s=UNTIL_S)
        assert tries == [1] * 5
        assert done["g"].ok
        assert done["g"].tries == 1
        assert await letters(jobs) == []


async def test_a_job_that_is_handed_back_with_a_delay_is_another_workers_then(
    redis_url: str, fresh: Fresh
) -> None:
    held, begun = Held(), asyncio.Event()

    async def busy(job: Job) -> None:
        begun.set()
        job.release(delay_s=0.2)

    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:
        async with jobs.worker("g", start="earliest")(busy):
            sent = asyncio.ensure_future(jobs.send(jobs.new()))
            await asyncio.wait_for(begun.wait(), UNTIL_S)
            await sent
        held.go.set()
        async with jobs.worker("g")(held()):
            await asyncio.wait_for(jobs.queue.group("g", shared=True).wait_idle(), UNTIL_S)
        assert [job.tries for job in held.begun] == [1]


@pytest.mark.parametrize("delay_s", [-1, "1", float("nan")])
async def test_a_delay_that_is_none_is_refused(delay_s: Any) -> None:
    with pytest.raises(ConfigError, match="delay_s is"):
        Released(delay_s=delay_s)


async def test_seeking_runs_no_job_twice_unless_it_is_asked_to(
    place: dict[str, Any], fresh: Fresh
) -> None:
    done: list[str] = []

    async def handler(job: Job) -> None:
        done.append(job.id)

    async with Bus(**place) as bus, bus.jobs(fresh()) as jobs:
        await jobs.queue.retain(age="1d")
        group = jobs.queue.group("g", shared=True)
        async with jobs.worker("g")(handler), jobs.worker("other")(nothing):
            sent = [jobs.new() for _ in range(5)]
            await jobs.send_many(sent, wait=["g", "other"], timeout_s=UNTIL_S)
            ids = [job.id for job in sent]
            assert sorted(done) == sorted(ids)
            done.clear()
            assert await group.seek(2) == 2
            await asyncio.wait_for(group.wait_idle(), UNTIL_S)
            assert done == []
            assert await group.seek(2, again=True) == 2
            await asyncio.wait_for(group.wait_idle(), UNTIL_S)
            assert sorted(done) == sorted(ids[2:])
            again = await sent[4].outcomes()
            assert {name: each.ok for name, each in again.items()} == {"g": True, "other": True}
            assert not (await group.state()).paused


async def test_seeking_again_forgets_nothing_while_jobs_run(redis_url: str, fresh: Fresh) -> None:
    held = Held()
    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs, jobs.worker("g")(held()):
        await jobs.send(first := jobs.new())
        held.go.set()
        await first.wait(["g"], timeout_s=UNTIL_S)
        held.go.clear()
        await jobs.send(second := jobs.new())
        await until(lambda: len(held.begun) == 2)
        group = jobs.queue.group("g", shared=True)
        with pytest.raises(QueueBusy):
            await group.seek("earliest", again=True)
        assert not (await group.state()).paused
        assert (await first.outcomes())["g"].ok
        held.go.set()
        await second.wait(["g"], timeout_s=UNTIL_S)
        await group.pause()
        await group.wait_drained()
        await group.seek("earliest", again=True)
        assert (await group.state()).paused, "who paused it resumes it"
