"""Workers of jobs: deadlines, leases, limits, pauses."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.jobs.job import Job
from busmq_spark.bus.jobs.worker import JobConsumerGroup, WorkerOptions
from busmq_spark.embedded import EmbeddedRedis, EmbeddedStandaloneServers
from busmq_spark.errors import ConfigError, JobFailed, WorkTimeout
from busmq_spark.queue.command_generators import command
from tests.bus.group_tools import end_leases
from tests.bus.job_tools import LONG_S, Held, concat, held_ends, letters, nothing, until_none
from tests.bus.tools import UNTIL_S, redis, stored, until
from tests.conftest import Fresh
from tests.faults.proxy import Proxy


async def test_a_deadline_cancels_the_handler_and_is_another_try(
    place: dict[str, Any], fresh: Fresh
) -> None:
    held, tries = Held(), []

    async def slow(job: Job) -> None:
        tries.append(job.tries)
        await held()(job)

    async with (
        Bus(**place) as bus,
        bus.jobs(fresh()) as jobs,
        jobs.worker("g", deadline_s=0.05, tries=2)(slow),
    ):
        done = await jobs.send(jobs.new(), wait=["g"], fail_fast=False, timeout_s=UNTIL_S)
        assert (tries, held.now, held.ended) == ([1, 2], 0, [])
        assert re.search(
            r"BUSMQ_WORK_TIMEOUT\] job \w+ of group 'g' of queue .*: not done within 0.05 s",
            done["g"].error,
        )


async def test_an_answer_behind_the_deadline_is_refused(
    place: dict[str, Any], fresh: Fresh
) -> None:
    async def stubborn(job: Job) -> None:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            return  # as if nothing had happened

    async with (
        Bus(**place) as bus,
        bus.jobs(fresh()) as jobs,
        jobs.worker("g", deadline_s=0.05, tries=1)(stubborn),
    ):
        with pytest.raises(JobFailed, match="not done within"):
            await jobs.send(jobs.new(), wait=["g"], timeout_s=UNTIL_S)


async def test_a_handler_that_its_deadline_does_not_end_loses_its_lease(
    place: dict[str, Any], fresh: Fresh
) -> None:
    go, tries = asyncio.Event(), list[int]()

    async def hanging(job: Job) -> None:
        tries.append(job.tries)
        while job.tries == 1 and not go.is_set():
            with suppress(asyncio.CancelledError):
                await go.wait()

    async with (
        Bus(**place) as bus,
        bus.jobs(fresh()) as jobs,
        jobs.worker("g", lease_s=1, deadline_s=0.05, tries=2)(hanging),
    ):
        try:
            done = await jobs.send(jobs.new(), wait=["g"], timeout_s=UNTIL_S)
            assert (tries, done["g"].tries) == ([1, 2], 2)
        finally:
            go.set()  # the worker waits for its handlers


async def test_a_handler_outlives_its_lease_while_its_process_lives(
    redis_url: str, fresh: Fresh
) -> None:
    held = Held()
    async with (  # noqa: SIM117  # too long
        Bus(redis_url) as bus,
        Bus(redis_url) as other,
        bus.jobs(fresh()) as jobs,
    ):
        async with (
            jobs.worker("g", lease_s=4, deadline_s=None)(held()),
            other.jobs(jobs.queue.name).worker("g", lease_s=4)(held()),
        ):
            await jobs.send(jobs.new())
            await until(lambda: held.begun)
            _, due, *_ = jobs.queue.keys.group("g")
            first = int((await redis(jobs.queue, "ZRANGE", due, 0, 0, "WITHSCORES"))[1])

            async def kept() -> bool:
                found = await redis(jobs.queue, "ZRANGE", due, 0, 0, "WITHSCORES")
                return int(found[1]) < first + 4000

            await until_none(kept)
            held.go.set()
            await held_ends(jobs, "g")
            assert [job.tries for job in held.begun] == [1]


async def test_a_worker_that_has_lost_its_lease_is_refused_and_told(
    place: dict[str, Any], fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    slow, quick = Held(), Held()
    async with AsyncExitStack() as stack:
        bus, other = [await stack.enter_async_context(Bus(**place)) for _ in range(2)]
        jobs = await stack.enter_async_context(bus.jobs(fresh()))
        await stack.enter_async_context(jobs.worker("g", lease_s=600, limit=1)(slow()))
        waiting = asyncio.ensure_future(jobs.send(jobs.new(), wait=["g"], timeout_s=UNTIL_S))
        await until(lambda: slow.begun)
        await end_leases(jobs.queue, "g")
        await stack.enter_async_context(
            other.jobs(jobs.queue.name).worker("g", lease_s=600)(quick())
        )
        await until(lambda: quick.begun)
        with caplog.at_level(logging.WARNING):
            slow.go.set()
            await until(lambda: "answers of 1 jobs are refused" in caplog.text)
        assert not waiting.done()
        quick.go.set()
        assert (await waiting)["g"].tries == 2


@pytest.mark.parametrize("tries", [3, 1])
async def test_a_worker_that_died_between_outcome_and_ack_has_not_done_it_in_vain(
    redis_url: str, fresh: Fresh, tries: int
) -> None:
    calls: Counter[str] = Counter()

    async def count(job: Job) -> None:
        calls[job.id] += 1

    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:
        first = jobs.worker("g", start="earliest", tries=tries)(count)
        async with first:
            settle, first._group.ack_settled = first._group.ack_settled, lambda _: asyncio.sleep(0)  # type: ignore[method-assign,assignment]
            done = await jobs.send(jobs.new(), wait=["g"], timeout_s=UNTIL_S)
            assert settle
            await first.pause()
            await end_leases(jobs.queue, "g")
            assert await stored(jobs.queue) == [1]
            async with jobs.worker("g", tries=tries)(
                count
            ):  # while the first is there: it would give its lease back, and the try with it
                await held_ends(jobs, "g")
        assert (list(calls.values()), await jobs.get(done["g"].job).wait("g")) == ([1], done)
        assert await letters(jobs) == []


async def test_a_job_whose_outcome_cannot_be_read_waits_for_its_dead_letter_and_has_no_more_tries(
    fresh: Fresh,
) -> None:
    with EmbeddedRedis() as server:
        server.command("ACL", "SETUSER", "holder", "on", ">secret", "~*", "&*", "+@all")
        async with (
            Bus(server.url, user="holder", password="secret") as bus,
            bus.jobs(fresh()) as jobs,
        ):
            await jobs._attached_queue()
            worker = jobs.worker("g", start="earliest", tries=1)(nothing)
            async with JobConsumerGroup(jobs.queue, worker) as group:
                await jobs.send(jobs.new())
                assert [each.tries for each in (await group.take(9))[0]] == [1]
                server.command("ACL", "SETUSER", "holder", "resetkeys", "~bus:queue:*")
                for _ in range(3):
                    await end_leases(jobs.queue, "g")
                    assert (await group.take(9))[0] == []
                    assert (await group.state()).waiting == 1
                server.command("ACL", "SETUSER", "holder", "~*")
                await end_leases(jobs.queue, "g")
                assert (await group.take(9))[0] == []
                assert [each.tries for each in await letters(jobs)] == [1]


async def test_no_more_handlers_run_at_once_than_asked_for(
    place: dict[str, Any], fresh: Fresh
) -> None:
    async def run(limit: int) -> None:
        held = Held()
        handler = held()

        async def brief(job: Job) -> None:
            held.go.clear()
            asyncio.get_running_loop().call_soon(held.go.set)
            await handler(job)

        async with bus.jobs(fresh()) as jobs, jobs.worker("g", limit=limit)(brief):
            await asyncio.gather(
                *(jobs.send(jobs.new(), wait=["g"], timeout_s=UNTIL_S) for _ in range(200))
            )
            assert len(set(held.ended)) == 200
            assert held.most <= limit

    async with Bus(**place) as bus:
        await asyncio.gather(*map(run, (1, 4, 16)))


async def test_pausing_waits_for_what_is_begun_and_nothing_more_begins(
    place: dict[str, Any], fresh: Fresh
) -> None:
    held = Held()
    async with (
        Bus(**place) as bus,
        bus.jobs(fresh()) as jobs,
        jobs.worker("g", limit=1)(held()) as worker,
    ):
        for _ in range(3):
            await jobs.send(jobs.new())
        await until(lambda: held.begun)
        with pytest.raises(
            WorkTimeout,
            match=r"1 handlers of group 'g' of queue .*: not done within 0.01 s. It stays paused",
        ):
            await worker.pause(0.01)
        held.go.set()
        await asyncio.wait_for(worker.pause(), UNTIL_S)
        assert (len(held.begun), worker.running) == (1, 0)
        assert await stored(jobs.queue) == [2, 3]
        await worker.resume()
        await held_ends(jobs, "g")
        assert len(held.ended) == 3


async def test_draining_finishes_what_is_begun_and_ends(
    place: dict[str, Any], fresh: Fresh
) -> None:
    held = Held()
    async with Bus(**place) as bus, bus.jobs(fresh()) as jobs:
        worker = jobs.worker("g", limit=1)(held())
        running = asyncio.ensure_future(worker.run())
        await until(lambda: worker._tasks)
        for _ in range(2):
            await jobs.send(jobs.new())
        await until(lambda: held.begun)
        asyncio.get_running_loop().call_soon(held.go.set)
        await asyncio.wait_for(worker.drain(), UNTIL_S)
        await asyncio.wait_for(running, UNTIL_S)
        assert (len(held.ended), await stored(jobs.queue)) == (1, [2])


async def test_stopping_gives_back_what_runs_and_its_try_does_not_count(
    place: dict[str, Any], fresh: Fresh
) -> None:
    held = Held()
    async with Bus(**place) as bus, bus.jobs(fresh()) as jobs:
        async with jobs.worker("g")(held()) as worker:
            await jobs.send(jobs.new())
            await until(lambda: held.begun)
        assert (held.now, held.ended) == (0, [])
        await worker.stop()
        held.go.set()
        async with worker:
            await held_ends(jobs, "g")
        assert [job.tries for job in held.begun] == [1, 1]


async def test_a_job_whose_thread_goes_on_does_not_begin_again_at_once(
    redis_url: str, fresh: Fresh
) -> None:
    begun, go = threading.Event(), threading.Event()

    def plain(job: object) -> None:
        begun.set()
        go.wait()

    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:
        async with jobs.worker("g")(plain):
            await jobs.send(jobs.new())
            await until(begun.is_set)
        async with jobs.queue.group("g", shared=True) as group:
            assert (await group.take(1))[0] == []
        go.set()


async def test_a_stop_that_was_cancelled_is_finished_by_the_next(
    redis_url: str, fresh: Fresh
) -> None:
    cleaning, cleaned = asyncio.Event(), asyncio.Event()

    async def slow_to_end(job: Job) -> None:
        try:
            await asyncio.sleep(LONG_S)
        finally:
            cleaning.set()
            await cleaned.wait()

    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:
        worker = jobs.worker("g", start="earliest")(slow_to_end)
        running = asyncio.ensure_future(worker.run())
        await jobs.send(jobs.new())
        await until(lambda: worker.running)
        first = asyncio.ensure_future(worker.stop())
        await cleaning.wait()
        first.cancel()
        await asyncio.wait([first])
        asyncio.get_running_loop().call_soon(cleaned.set)
        await asyncio.wait_for(worker.stop(), UNTIL_S)
        await asyncio.wait_for(running, UNTIL_S)
        assert (await jobs.queue.groups())[0].in_flight == 0


@pytest.mark.parametrize("how", ["stop", "drain"])
async def test_a_handler_may_end_its_own_worker(redis_url: str, fresh: Fresh, how: str) -> None:
    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:

        @jobs.worker("g", start="earliest")
        async def last(job: Job) -> None:
            await getattr(last, how)()

        await jobs.send(jobs.new())
        await asyncio.wait_for(last.run(), UNTIL_S)
        assert (await jobs.queue.groups())[0].idle


@pytest.mark.parametrize("how", ["stop", "drain"])
@pytest.mark.parametrize("kind", ["queue", "topic"])
async def test_a_handler_in_a_thread_may_end_its_own_worker(
    redis_url: str, fresh: Fresh, kind: str, how: str
) -> None:
    async with Bus(redis_url) as bus, bus.topic(fresh(), 2) as topic, bus.jobs(fresh()) as jobs:
        loop = asyncio.get_running_loop()
        owner: Any = jobs if kind == "queue" else topic.jobs()

        def end(job: object) -> None:
            asyncio.run_coroutine_threadsafe(getattr(worker, how)(), loop).result()

        worker = owner.worker("g", start="earliest", deadline_s=None)(end)
        await owner.send(owner.new())
        await asyncio.wait_for(worker.run(), UNTIL_S)
        assert worker.running == 0


async def test_a_stop_while_messages_are_set_aside_leaves_as_many_slots_as_there_were(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    held = Held()
    with Proxy(redis_server.port) as proxy:
        async with Bus(proxy.url) as bus, bus.jobs(fresh()) as jobs:
            await jobs.queue.push({"no": "job"})
            await jobs.send(jobs.new())
            worker = jobs.worker("g", limit=4, start="earliest")(held())
            gate = proxy.hold(
                lambda each: each.name == "group_settle" and jobs.queue.keys.messages in each.keys
            )
            running = asyncio.ensure_future(worker.run())
            call = await asyncio.to_thread(gate.wait)
            await until(lambda: held.begun)
            stopping = asyncio.ensure_future(worker.stop())
            await asyncio.sleep(0)
            gate.open()
            call.release()
            await asyncio.gather(stopping, running)
            assert await worker.slots.take() == 4


async def test_a_message_that_names_no_job_is_a_dead_letter(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs, jobs.worker("g")(nothing):
        await jobs.queue.push_many(["plain text", {"job": 3}])
        assert (await jobs.send(jobs.new(), wait=["g"], timeout_s=UNTIL_S))["g"].ok
        await held_ends(jobs, "g")
        assert [letter.value for letter in await letters(jobs)] == [b"plain text", b'{"job":3}']


def test_a_worker_s_options_are_those_of_its_call() -> None:
    assert WorkerOptions(group="g").group_options().to_fields() == {"lease_ms": 30_000, "tries": 3}


async def test_several_queues_take_turns_under_one_limit(redis_url: str, fresh: Fresh) -> None:
    order: list[str] = []
    now = most = 0

    async def note(job: Job) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        order.append(job.jobs.queue.name)
        now -= 1

    async with Bus(redis_url) as bus:
        long, short = bus.jobs(fresh("long")), bus.jobs(fresh("short"))
        for jobs, count in ((long, 100), (short, 5)):
            for _ in range(count):
                await jobs.send(jobs.new())
        ours = bus.workers(
            long.worker("g", start="earliest")(note),
            short.worker("g", start="earliest")(note),
            limit=1,
        )
        running = asyncio.ensure_future(ours.run())
        await until(lambda: len(order) == 105)
        await ours.drain(UNTIL_S)
        await asyncio.wait_for(running, UNTIL_S)
        assert most == 1
        assert [place for place, name in enumerate(order) if name == short.queue.name][-1] < 20


async def test_several_workers_pause_and_go_on_together(redis_url: str, fresh: Fresh) -> None:
    held = Held()
    async with Bus(redis_url) as bus:
        some = [bus.jobs(fresh()) for _ in range(2)]
        async with bus.workers(*(jobs.worker("g")(held()) for jobs in some), limit=2) as workers:
            held.go.set()
            await workers.pause()
            waiting = [
                asyncio.ensure_future(jobs.send(jobs.new(), wait=["g"], timeout_s=UNTIL_S))
                for jobs in some
            ]
            for jobs in some:
                await until(lambda jobs=jobs: jobs.queue.pushed)
            assert not held.begun
            await workers.resume()
            assert [done["g"].ok for done in await asyncio.gather(*waiting)] == [True, True]
        with pytest.raises(ConfigError, match="expected one or more, each once"):
            bus.workers()
        with pytest.raises(ConfigError, match="limit is 0"):
            bus.workers(some[0].worker("g")(nothing), limit=0)


async def test_jobs_of_a_queue_on_the_second_server_leave_keys_only_there(
    three_servers: EmbeddedStandaloneServers, fresh: Fresh
) -> None:
    async with Bus(",".join(three_servers.urls)) as bus:
        jobs = bus.jobs(fresh(), server=1)
        async with jobs.worker("worldConcat")(concat):
            some = [jobs.new() for _ in range(10)]
            for job in some:
                job["inbound"] = "Hello"
            done = await asyncio.gather(
                *(jobs.send(job, wait=["worldConcat"], timeout_s=UNTIL_S) for job in some)
            )
            assert all(each["worldConcat"].ok for each in done)
            assert [(await job.load("outbound"))["outbound"] for job in some] == [
                "Hello world!"
            ] * 10
        for index, server in enumerate(bus.servers.commands):
            found = [
                await server.execute(command("KEYS", f"*{name}*"))
                for name in (jobs.queue.name, *(job.id for job in some))
            ]
            assert all(found) if index == 1 else not any(found)


async def test_workers_end_with_their_jobs(redis_url: str, fresh: Fresh) -> None:
    held = Held()
    async with Bus(redis_url) as bus:
        async with bus.jobs(fresh()) as jobs:
            running = asyncio.ensure_future(jobs.worker("g")(held()).run())
            await until(lambda: jobs.at_work)
            await jobs.send(jobs.new())
            await until(lambda: held.begun)
        await asyncio.wait_for(running, UNTIL_S)
        assert held.ended == []
        assert (await bus.queue(jobs.queue.name).groups())[0].waiting == 1  # given back
        assert bus.online
