"""Outcomes of jobs as they come, and the queue that they are pushed to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.jobs.job import Job
from busmq_spark.bus.jobs.jobs import Jobs
from busmq_spark.errors import ConfigError, Rejected
from busmq_spark.groups.job import JobOutcome
from busmq_spark.queue.keys import jobs_channel
from tests.bus.conftest import OpenBus
from tests.bus.job_tools import held_ends, nothing
from tests.bus.tools import UNTIL_S, redis, until
from tests.conftest import Fresh


async def refuse(job: Job) -> None:
    raise Rejected(f"no: {job.tries}")


async def sent(jobs: Jobs, count: int = 1) -> set[str]:
    found = [jobs.new() for _ in range(count)]
    for each in found:
        await jobs.send(each)
    return {each.id for each in found}


async def some(outcomes: AsyncIterator[JobOutcome], count: int) -> set[str]:
    async with asyncio.timeout(UNTIL_S):
        return {(await anext(outcomes)).job for _ in range(count)}


async def test_own_ones_those_of_a_queue_and_those_of_a_pattern(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    hint = fresh("con[c]?")
    async with open_bus() as bus, open_bus() as other:
        mine, theirs, third = (
            bus.jobs(f"{hint}-1"),
            other.jobs(f"{hint}-1"),
            other.jobs(f"{hint}-2"),
        )
        async with mine.worker("g")(nothing), third.worker("g")(refuse):  # noqa: SIM117  # too long
            async with (
                mine.completions() as own,
                theirs.completions(f"{hint}-1") as one,
                other.jobs("any").completions(f"{hint}-*") as every,
            ):
                ours, others, rest = (
                    await sent(mine, 3),
                    await sent(theirs, 2),
                    await sent(third, 2),
                )
                assert await some(own, 3) == ours
                assert await some(one, 5) == ours | others
                assert await some(every, 7) == ours | others | rest
                await sent(mine)
                found = await asyncio.wait_for(anext(own), UNTIL_S)
                assert (found.group, found.ok, found.queue) == ("g", True, f"{hint}-1")


async def test_the_loop_ends_when_it_is_ended(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:
        completions = jobs.completions()
        following = asyncio.ensure_future(some(completions, 1))
        await until(lambda: completions._connections)
        await completions.detach()
        with pytest.raises(StopAsyncIteration):
            await following
        with pytest.raises(StopAsyncIteration):
            await anext(completions)


async def test_what_is_no_outcome_is_skipped_and_what_nobody_takes_dropped(
    redis_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.jobs(fresh()) as jobs,
        jobs.completions(jobs.queue.name) as all_of_it,
    ):
        for _ in range(17):
            await redis(jobs.queue, "PUBLISH", jobs_channel(jobs.queue.name), b"x" * 1024 * 1024)
        async with jobs.worker("g")(nothing):
            ids = await sent(jobs)
            assert await some(all_of_it, 1) == ids
        assert "is no outcome of a job" in caplog.text
        assert "dropped so far" in caplog.text


async def test_stored_ones_are_had_from_where_the_group_was(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        jobs = bus.jobs(fresh(), durable=True)
        async with jobs.worker("g")(nothing):
            first = await sent(jobs, 3)
            await held_ends(jobs, "g")
            reading = jobs.completions(group="audit")
            assert await some(reading, 3) == first
            second = await sent(jobs)
            assert await some(reading, 1) == second  # asks on behind the first three
            await reading.aclose()
            async with bus.queue(f"{jobs.queue.name}.done") as done:
                await done.push("no outcome")
            third = await sent(jobs)
            assert (
                await some(bus.jobs("any").completions(jobs.queue.name, group="audit"), 2)
                == second | third
            )


async def test_a_worker_can_ask_for_them_too(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        name = fresh()
        async with bus.jobs(name, durable=True).worker("g", tries=1)(refuse):
            ids = await sent(bus.jobs(name))
            found = [each async for each in _first(bus.jobs(name).completions(group="audit"))]
            assert [(each.job, each.error) for each in found] == [(*ids, "no: 1")]


async def _first(outcomes: AsyncIterator[JobOutcome]) -> AsyncIterator[JobOutcome]:
    async with asyncio.timeout(UNTIL_S):
        yield await anext(outcomes)


def test_what_makes_no_sense_is_refused() -> None:
    jobs = Bus("redis://127.0.0.1:1").jobs("q")
    for of in ("", 3):
        with pytest.raises(ConfigError, match=f"of is {of!r}; expected the name of a queue"):
            jobs.completions(of)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the name of the subscription is"):
        jobs.completions(group=":x")
