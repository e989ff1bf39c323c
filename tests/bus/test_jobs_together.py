"""Many jobs in one call: in their order, in few round trips, and what becomes of them when
something breaks in the middle.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.jobs.job import Job
from busmq_spark.bus.jobs.jobs import Jobs
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import (
    ConfigError,
    JobFailed,
    JobsNotSent,
    JobTimeout,
    LinkLost,
    QueueFull,
    ServerFull,
)
from tests.bus.conftest import OpenBus
from tests.bus.group_tools import end_leases
from tests.bus.job_tools import Held, concat, held_ends, keys_of, nothing
from tests.bus.test_job_faults import started
from tests.bus.tools import UNTIL_S, redis, stored, until
from tests.conftest import Fresh
from tests.faults.proxy import Command, Proxy


def some_of(jobs: Jobs, count: int, **fields: Any) -> list[Job]:
    found = [jobs.new() for _ in range(count)]
    for number, job in enumerate(found):
        for name, value in fields.items():
            job[name] = value(number) if callable(value) else value
    return found


def counted(proxy: Proxy) -> Counter[str]:
    names: Counter[str] = Counter()
    proxy.seen.append(lambda command: names.update([command.name]))
    return names


def push_to(jobs: Jobs) -> Callable[[Command], bool]:
    return lambda command: command.name == "push" and jobs.queue.keys.messages in command.keys


async def test_many_are_sent_worked_on_and_waited_for_in_their_order(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, open_bus() as other, bus.jobs(fresh()) as jobs:
        async with (
            other.jobs(jobs.queue.name).worker("worldConcat", limit=50)(concat),
            other.jobs(jobs.queue.name).worker("h")(nothing),
        ):
            some = some_of(jobs, 130, inbound=lambda number: f"{number}:")
            done = await jobs.send_many(some, wait=["worldConcat", "h"], timeout_s=UNTIL_S)
            assert [sorted(each) for each in done] == [["h", "worldConcat"]] * 130
            assert [(each["h"].job, each["h"].message, each["h"].ok) for each in done] == [
                (job.id, n, True) for n, job in enumerate(some, 1)
            ]
            assert [(await job.load("outbound"))["outbound"] for job in some] == [
                f"{number}: world!" for number in range(130)
            ]
            later = other.jobs(jobs.queue.name)
            again = await later.wait_many(
                [later.get(job.id) for job in reversed(some)], ["h"], timeout_s=UNTIL_S
            )
            assert again == [{"h": each["h"]} for each in reversed(done)]
        await jobs.queue.flush()


async def test_many_are_few_calls(redis_server: EmbeddedRedis, fresh: Fresh) -> None:
    with Proxy(redis_server.port) as proxy:
        async with (
            Bus(proxy.url) as bus,
            bus.jobs(fresh()) as jobs,
            jobs.worker("g", limit=1000)(nothing),
        ):
            await jobs.send(jobs.new(), wait=["g"], timeout_s=UNTIL_S)
            await held_ends(jobs, "g")
            calls = counted(proxy)
            await jobs.send_many(some_of(jobs, 1000, a=1), wait=["g"], timeout_s=UNTIL_S)
            await held_ends(jobs, "g")
            assert (calls["push"], calls["SET"]) == (1, 1000)
            assert (
                calls["job_outcome"] <= 20
            )  # 100 jobs a call; the loop may find them finished in more than one go
            assert calls["group_settle"] <= 10


async def test_what_is_sent_in_one_turn_shares_its_calls(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    with Proxy(redis_server.port) as proxy:
        async with (
            Bus(proxy.url) as bus,
            bus.jobs(fresh()) as jobs,
            jobs.worker("g", limit=1000)(nothing),
        ):
            await jobs.send(jobs.new(), wait=["g"], timeout_s=UNTIL_S)
            await held_ends(jobs, "g")
            calls = counted(proxy)
            await asyncio.gather(
                *(jobs.send(job, wait=["g"], timeout_s=UNTIL_S) for job in some_of(jobs, 500))
            )
            await held_ends(jobs, "g")
            assert calls["push"] == 1
            assert calls["job_outcome"] <= 20


async def test_none_of_them_send_nothing_and_what_makes_no_sense_is_refused(
    redis_url: str, fresh: Fresh
) -> None:
    jobs = Bus("redis://127.0.0.1:1").jobs("q")
    assert await jobs.send_many([]) == []
    assert await jobs.wait_many([], ["g"]) == []
    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:
        job = jobs.new()
        for call in (
            lambda: jobs.send_many([job, jobs.new(), job]),
            lambda: jobs.wait_many([job, job], ["g"]),
        ):
            with pytest.raises(ConfigError, match="a job is there twice"):
                await call()
        with pytest.raises(ConfigError, match="has no group 'nobody'"):
            await jobs.send_many([job, jobs.new()], wait=["nobody"])
        with pytest.raises(ConfigError, match="no group is named"):
            await jobs.wait_many([job], [])
        with pytest.raises(ConfigError, match="timeout_s is 0"):
            await jobs.send_many([job], timeout_s=0)
        assert await stored(jobs.queue) == []
        assert await jobs.send_many([job, jobs.new()]) == [{}, {}]
        assert await stored(jobs.queue) == [1, 2]


async def test_one_that_is_given_up_is_told_and_the_others_go_on(
    redis_url: str, fresh: Fresh
) -> None:
    async def picky(job: Job) -> None:
        if (await job.load("n"))["n"] == 3:
            raise ValueError("not three")

    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs, jobs.worker("g", tries=1)(picky):
        some = some_of(jobs, 10, n=lambda number: number)
        with pytest.raises(JobFailed, match="not three") as caught:
            await jobs.send_many(some, wait=["g"], timeout_s=UNTIL_S)
        assert caught.value.details["job"] == some[3].id
        done = await jobs.wait_many(some, "g", timeout_s=UNTIL_S, fail_fast=False)
        assert [each["g"].ok for each in done] == [number != 3 for number in range(10)]
        with pytest.raises(JobFailed, match="not three"):
            await jobs.wait_many(some, "g", timeout_s=UNTIL_S)


async def test_those_that_are_not_done_in_time_are_told_and_can_be_waited_for(
    redis_url: str, fresh: Fresh
) -> None:
    held = Held()
    async with (
        Bus(redis_url) as bus,
        bus.jobs(fresh()) as jobs,
        jobs.worker("slow", limit=2)(held()),
        jobs.worker("quick")(nothing),
    ):
        some = some_of(jobs, 5)
        await jobs.send_many(some, wait=["quick"], timeout_s=UNTIL_S)
        with pytest.raises(
            JobTimeout,
            match=(
                rf"job {some[0].id} of queue '.*', and 4 others: no outcome of \['slow'\] within"
                r" 0.2 s"
            ),
        ) as caught:
            await jobs.wait_many(some, ["slow", "quick"], timeout_s=0.2)
        assert caught.value.details["jobs"] == [job.id for job in some]
        held.go.set()
        assert len(await jobs.wait_many(some, ["slow", "quick"], timeout_s=UNTIL_S)) == 5
        assert Counter(held.ended) == Counter(job.id for job in some)


async def test_an_outcome_of_an_earlier_sending_does_not_count(
    redis_url: str, fresh: Fresh
) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.jobs(fresh()) as jobs,
        jobs.worker("g")(nothing) as worker,
    ):
        some = some_of(jobs, 3)
        first = await jobs.send_many(some, wait=["g"], timeout_s=UNTIL_S)
        await worker.pause()
        sending = asyncio.ensure_future(jobs.send_many(some, wait=["g"], timeout_s=UNTIL_S))
        await until(lambda: jobs.queue.pushed == 6)
        await jobs._waits.read_outcomes(
            jobs._waits._waits
        )  # as it does itself once a second: it finds those of the first sending
        assert not sending.done()
        await worker.resume()
        assert [[each["g"].message for each in done] for done in (first, await sending)] == [
            [1, 2, 3],
            [4, 5, 6],
        ]


async def test_a_queue_that_is_full_says_how_many_it_took(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        jobs = bus.jobs(fresh())
        await jobs.queue.attach(maxsize=3)
        some = some_of(jobs, 5, a=1)
        with pytest.raises(
            JobsNotSent,
            match=r"the first 3 jobs are sent .*, of the next 0 .*, and the last 2 are not sent",
        ) as caught:
            await jobs.send_many(some)
        assert isinstance(caught.value.__cause__, QueueFull)
        assert [caught.value.details[name] for name in ("sent", "unknown", "left")] == [3, 0, 2]
        async with jobs.worker("g", start="earliest")(nothing):
            assert len(await jobs.wait_many(some[:3], ["g"], timeout_s=UNTIL_S)) == 3
            await held_ends(jobs, "g")
            assert len(await jobs.send_many(some[3:], wait=["g"], timeout_s=UNTIL_S)) == 2


@pytest.mark.fault
async def test_a_redis_without_room_for_fields_has_none_of_the_jobs(fresh: Fresh) -> None:
    with EmbeddedRedis() as server:
        async with Bus(server.url) as bus, bus.jobs(fresh()) as jobs, jobs.worker("g")(nothing):
            some = some_of(jobs, 20, a=b"x" * 1000)
            server.command("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(JobsNotSent, match="BUSMQ_SERVER_FULL") as caught:
                await jobs.send_many(some, wait=["g"], timeout_s=UNTIL_S)
            assert [caught.value.details[name] for name in ("sent", "unknown", "left")] == [
                0,
                0,
                20,
            ]
            assert await stored(jobs.queue) == []
            server.command("CONFIG", "SET", "maxmemory", "0")
            assert (
                len(await jobs.send_many(some, wait=["g"], timeout_s=UNTIL_S)) == 20
            )  # what was not saved is saved now
            assert await some[19].load("a") == {"a": b"x" * 1000}


@pytest.mark.fault
async def test_a_redis_that_fills_up_between_two_chunks_says_how_many_it_took(fresh: Fresh) -> None:
    with EmbeddedRedis() as server, Proxy(server.port) as proxy:
        async with Bus(proxy.url) as bus, bus.jobs(fresh()) as jobs, Bus(server.url) as other:
            await jobs.send(jobs.new())  # so that Redis knows the script
            some = some_of(jobs, 2500)
            gate = proxy.hold(push_to(jobs), skip=1)
            sending = asyncio.ensure_future(jobs.send_many(some))
            second = await asyncio.to_thread(gate.wait)
            server.command("CONFIG", "SET", "maxmemory", "1")
            gate.open()
            second.release()
            with pytest.raises(JobsNotSent) as caught:
                await sending
            assert isinstance(caught.value.__cause__, ServerFull)
            assert [caught.value.details[name] for name in ("sent", "unknown", "left")] == [
                1000,
                0,
                1500,
            ]
            server.command("CONFIG", "SET", "maxmemory", "0")
            async with other.jobs(jobs.queue.name).worker("g", start="earliest", limit=500)(
                nothing
            ):
                assert len(await jobs.wait_many(some[:1000], ["g"], timeout_s=UNTIL_S)) == 1000
                assert await jobs.get(some[1000].id).outcomes() == {}
                assert len(await jobs.send_many(some[1000:], wait=["g"], timeout_s=UNTIL_S)) == 1500


@pytest.mark.fault
async def test_a_link_that_breaks_between_two_chunks_says_what_is_unknown(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    with Proxy(redis_server.port) as proxy:
        async with Bus(proxy.url) as bus, bus.jobs(fresh()) as jobs:
            await jobs.send(jobs.new())  # so that Redis knows the script
            some = some_of(jobs, 2500)
            gate = proxy.hold(push_to(jobs), skip=1)
            sending = asyncio.ensure_future(jobs.send_many(some))
            (await asyncio.to_thread(gate.wait)).drop()
            gate.open()
            with pytest.raises(JobsNotSent) as caught:
                await sending
            assert isinstance(caught.value.__cause__, LinkLost)
            assert [caught.value.details[name] for name in ("sent", "unknown", "left")] == [
                1000,
                1000,
                500,
            ]
            assert await jobs.send_many(some[2000:]) == [{}] * 500
            assert await jobs.queue.count() == 1501


@pytest.mark.fault
async def test_a_waiter_that_is_cut_off_in_the_middle_hears_of_all_of_them(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    held = Held()
    with Proxy(redis_server.port) as proxy:
        async with Bus(proxy.url) as bus, Bus(redis_server.url) as other, bus.jobs(fresh()) as jobs:
            here = other.jobs(jobs.queue.name)
            async with here.worker("g", limit=300)(held()):
                waiting = asyncio.ensure_future(
                    jobs.send_many(some_of(jobs, 250), wait=["g"], timeout_s=UNTIL_S)
                )
                await until(lambda: len(held.begun) == jobs.queue.pushed == 250)
                bus.servers.pubsub[0].drop()
                bus.servers.commands[0].drop()
                subscribing = proxy.hold(lambda command: command.name == "SUBSCRIBE")
                held.go.set()
                again = await asyncio.to_thread(subscribing.wait)
                await held_ends(here, "g")
                subscribing.open()
                again.release()
                assert [each["g"].ok for each in await waiting] == [True] * 250


@pytest.mark.fault
async def test_a_worker_killed_between_outcomes_and_acks_of_a_batch_has_not_done_it_in_vain(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    """Of its handlers some have finished, and of these some have outcomes; the others are at
    work.
    """
    calls: Counter[str] = Counter()

    async def count(job: Job) -> None:
        calls[job.id] += 1

    with Proxy(redis_server.port) as proxy:
        async with Bus(redis_server.url) as bus, bus.jobs(fresh()) as jobs:
            some = some_of(jobs, 40, hold=lambda number: number % 2 == 1)
            await jobs.send_many(some)
            gate = proxy.hold(
                lambda command: (
                    command.name == "group_settle" and jobs.queue.keys.messages in command.keys
                )
            )
            killed = await started({"url": proxy.url}, "work", jobs.queue.name, 3, 40, 0, 600)
            ack = await asyncio.to_thread(gate.wait)
            await until(lambda: len(killed.said) == 40)
            await killed.kill()
            gate.open()
            ack.drop()
            done = {job.id for job in some if await job.outcomes()}
            assert done
            await end_leases(jobs.queue, "g")
            async with jobs.worker("g", limit=40, lease_s=600)(count):
                outcomes = await jobs.wait_many(some, ["g"], timeout_s=UNTIL_S)
                await held_ends(jobs, "g")
            assert [each["g"].tries for each in outcomes] == [
                1 if job.id in done else 2 for job in some
            ]
            assert calls == Counter(job.id for job in some if job.id not in done)


async def test_handlers_that_are_stopped_before_they_begin_leave_as_many_slots_as_there_were(
    redis_url: str, fresh: Fresh
) -> None:
    held = Held()
    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:
        worker = jobs.worker("g", limit=4, start="earliest")(held())
        start, begun = worker._start_handlers, asyncio.Event()

        def start_and_cancel(works: Any) -> int:
            count = start(works)
            for task in worker._at_work:
                task.cancel()
            if count:
                begun.set()
            return count

        worker._start_handlers = start_and_cancel  # type: ignore[method-assign]
        async with worker:
            await jobs.send_many(some_of(jobs, 3))
            await begun.wait()
        assert (await worker.slots.take(), worker.running, held.begun) == (4, 0, [])
        worker.slots.give_back(4)
        worker._start_handlers = start  # type: ignore[method-assign]
        held.go.set()
        async with worker:
            await held_ends(jobs, "g")
        assert len(held.ended) == 3


def test_many_without_a_loop(redis_url: str, fresh: Fresh) -> None:
    with Bus.sync(redis_url) as bus, bus.jobs(fresh()) as jobs:
        some = [jobs.new() for _ in range(3)]
        for number, job in enumerate(some):
            job["n"] = number
        assert jobs.send_many(some) == [{}, {}, {}]
        assert [jobs.get(job.id).load("n") for job in some] == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert jobs.queue.count() == 3


async def test_fields_are_saved_where_the_queue_of_each_job_is(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs, bus.jobs(fresh()) as next_ones:
        mine, theirs = jobs.new(), next_ones.new()
        mine["a"], theirs["a"] = 1, 2
        await next_ones.send_many([mine, theirs])  # a job that goes on to the next queue
        assert [await next_ones.get(job.id).load("a") for job in (mine, theirs)] == [
            {"a": 1},
            {"a": 2},
        ]
        assert await keys_of(jobs.queue, mine) == [mine.in_redis.field("a")]
        assert await redis(next_ones.queue, "LLEN", next_ones.queue.keys.messages) == 4
