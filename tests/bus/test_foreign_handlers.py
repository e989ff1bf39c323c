"""Handlers that fail in every way: each failure is counted, logged and answered, and none ends a
worker, a service, a member or the bus.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.jobs.job import Job
from busmq_spark.errors import BusError, Rejected, RequestFailed
from tests.bus.job_tools import LONG_S, Held, letters, nothing
from tests.bus.test_topic_groups import owns
from tests.bus.tools import UNTIL_S, NoText, until
from tests.conftest import Fresh


class OddBase(BaseException):
    pass


class NoTextOfOurs(BusError):
    def __init__(self) -> None:
        Exception.__init__(self)

    def __str__(self) -> str:
        raise OddBase


def raising(kind: type[BaseException]) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise kind

    return fail


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(LONG_S)


async def await_what_is_cancelled() -> None:
    helper = asyncio.ensure_future(asyncio.sleep(LONG_S))
    asyncio.get_running_loop().call_soon(helper.cancel)
    await helper


async def time_out() -> None:
    async with asyncio.timeout(0):
        await asyncio.sleep(LONG_S)


async def fail_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(raising(NoText)())  # type: ignore[arg-type]


FAILURES: dict[str, Callable[[], Awaitable[None]]] = {
    **{
        kind.__name__: raising(kind)
        for kind in (NoText, NoTextOfOurs, OddBase, SystemExit, KeyboardInterrupt, GeneratorExit)
    },
    "CancelledError": raising(asyncio.CancelledError),
    "cancels itself": cancel_itself,
    "awaits what is cancelled": await_what_is_cancelled,
    "times out": time_out,
    "fails in a group": fail_in_a_group,
}


@pytest.mark.parametrize("how", FAILURES)
async def test_a_handler_that_fails_uses_up_its_tries_and_ends_nothing(
    redis_url: str, fresh: Fresh, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    tries, held = list[int](), Held()

    async def work(job: Job) -> None:
        if (await job.load("bad"))["bad"]:
            tries.append(job.tries)
            await FAILURES[how]()
        await held()(job)

    async with (
        Bus(redis_url) as bus,
        bus.jobs(fresh()) as jobs,
        jobs.worker("g", tries=2, lease_s=3600)(work),
    ):
        good, bad = jobs.new(), jobs.new()
        good["bad"], bad["bad"] = False, True
        await jobs.send(good)
        done = await jobs.send(bad, wait=["g"], fail_fast=False, timeout_s=UNTIL_S)
        held.go.set()
        await until(lambda: held.ended == [good.id])  # what ran beside it goes on
        assert (tries, done["g"].ok, done["g"].tries) == ([1, 2], False, 2)
        assert [letter.error for letter in await letters(jobs)] == [done["g"].error]
    assert done["g"].error
    assert "failed in try 1 of 2" in caplog.text
    assert caplog.text.count(f"in {FAILURES[how].__name__}\n") >= 2  # the tracebacks


async def test_a_rejection_is_logged_without_a_traceback(
    redis_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(job: Job) -> None:
        raise Rejected("not\nmine")

    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs, jobs.worker("g")(work):
        done = await jobs.send(jobs.new(), wait=["g"], fail_fast=False, timeout_s=UNTIL_S)
        assert done["g"].error == "not mine"
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("how", ["stop", "leave", "cancel all"])
async def test_a_worker_that_is_stopped_releases_what_runs(
    redis_url: str, fresh: Fresh, how: str
) -> None:
    held, name = Held(), fresh()

    async def live() -> None:
        async with (
            Bus(redis_url) as bus,
            bus.jobs(name) as jobs,
            jobs.worker("g", lease_s=3600)(held()) as worker,
        ):
            await jobs.send(jobs.new())
            await until(lambda: held.begun)
            if how == "stop":
                await worker.stop()
            if how == "cancel all":
                for task in asyncio.all_tasks():
                    if task is not outside:
                        task.cancel()
                await asyncio.sleep(LONG_S)

    outside = asyncio.current_task()
    await asyncio.wait([asyncio.ensure_future(live())])
    async with Bus(redis_url) as bus, bus.jobs(name) as jobs:
        seen: list[int] = []

        async def see(job: Job) -> None:
            seen.append(job.tries)

        async with jobs.worker("g")(see):
            await until(lambda: seen)
        assert seen == [1]


async def test_what_is_given_to_retry_and_reject_may_be_any_object(
    redis_url: str, fresh: Fresh
) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.queue(fresh()) as queue,
        queue.group("g", shared=True, tries=1) as group,
    ):
        await queue.push_many("abc")
        async for batch in group.batches():
            await group.retry(batch[0], error=NoText())
            await group.reject(batch[1], ValueError("boom"))
            await group.reject(batch[2], "a\nb")
            break
        async with bus.queue(group.dead) as dead:
            errors = [message.json()["error"] async for message in dead.consume(max=3)]
        assert errors == [
            "NoText: <a NoText, whose str() raises AttributeError>",
            "ValueError: boom",
            "a b",
        ]


async def test_what_the_reader_of_a_group_raises_is_counted(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        await queue.push("a")

        async def read() -> None:
            async with queue.group("g", shared=True, tries=1) as group:
                async for _ in group.batches():
                    raise NoText

        with pytest.raises(NoText):
            await read()
        async with bus.queue(f"{queue.name}.dead") as dead:
            assert (await anext(dead.consume())).json()["error"].startswith("NoText")


@pytest.mark.parametrize("how", FAILURES)
async def test_a_service_answers_whatever_its_handler_raises(
    redis_url: str, fresh: Fresh, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(bad: bool) -> str:
        if bad:
            await FAILURES[how]()
        return "well"

    name = fresh("svc")
    async with Bus(redis_url) as bus, bus.service(name) as provider, bus.service(name) as service:
        await provider.serve(answer, send_stack=True)
        await service.connect(timeout_s=UNTIL_S)
        with pytest.raises(RequestFailed):
            await service.request(True)
        assert await service.request(False) == "well"
    assert "a handler failed" in caplog.text


async def test_a_generator_of_parts_is_closed_whatever_happens(
    redis_url: str, fresh: Fresh
) -> None:
    closed: list[Any] = []

    async def parts(last: Any) -> AsyncIterator[Any]:
        try:
            yield 1
            yield last
            yield 3
        finally:
            closed.append(1)

    name = fresh("svc")
    async with Bus(redis_url) as bus, bus.service(name) as provider, bus.service(name) as service:
        await provider.serve(lambda kind: parts({"set": {1, 2}, "deep": deep()}[kind]))
        await service.connect(timeout_s=UNTIL_S)
        for count, kind in enumerate(("set", "deep"), 1):
            with pytest.raises(RequestFailed):
                assert [part async for part in service.stream(kind)]
            assert len(closed) == count


def deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


async def test_a_member_goes_on_whatever_its_handlers_raise(
    redis_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    async with Bus(redis_url) as bus, bus.topic(fresh("t"), 2) as topic, topic.group("g") as member:
        for event in ("assigned", "revoked", "lost"):
            member.on(event, lambda _: 1 / 0)
            member.on(event, lambda _: await_what_is_cancelled())
        await owns(member, 0, 1)
        async with Bus(redis_url) as other, other.topic(topic.name).group("g") as second:
            await owns(second, 1)
            await owns(member, 0)
        await owns(member, 0, 1)
    assert "a handler of 'revoked' failed" in caplog.text


async def test_a_worker_of_a_closed_loop_leaves_no_handler(redis_url: str, fresh: Fresh) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.jobs(fresh()) as jobs,
        jobs.worker("g")(nothing) as worker,
    ):
        await jobs.send(jobs.new(), wait=["g"], timeout_s=UNTIL_S)
        assert worker.running == 0
