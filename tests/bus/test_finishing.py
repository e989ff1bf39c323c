"""A holder that stops while its messages are in work: no other holder gets a message until its
handler has ended; and a handler that stops its own holder, which must not wait for itself.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.handler_calls import WorkInHand
from busmq_spark.bus.jobs.job import Job
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.sync import LoopThread
from busmq_spark.errors import StateError
from busmq_spark.groups.shared_group import LeasedMessage
from tests.bus.tools import LoopClock, redis, until
from tests.conftest import Fresh
from tests.support import PATIENCE_S, wait_until

pytestmark = pytest.mark.redis


class Work:
    """The work on messages, in a task or in a thread: it lasts until ``go``."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.seen: list[object] = []
        self.ended = 0

    def in_thread(self, message: object) -> None:
        self.begun.set()
        assert self.go.wait(PATIENCE_S)
        self.seen.append(message)
        self.ended += 1

    async def in_task(self, message: object) -> None:
        self.begun.set()
        await until(self.go.is_set)
        self.seen.append(message)
        self.ended += 1

    def handler(self, kind: str) -> Callable[[Any], object]:
        return self.in_thread if kind == "thread" else self.in_task


async def no_other_gets_it(queue: Queue, stopping: asyncio.Task[Any], work: Work) -> None:
    """While the holder stops, another one gets nothing, also after the length of a lease. The
    message is settled once the handler has ended.
    """
    before = (await queue.groups())[0]
    async with queue.group("g", shared=True) as other:
        [due_ms] = await leases_of(queue)
        await until_async(lambda: renewed(queue, due_ms))
        assert (await other.take(1))[0] == []
        assert not stopping.done()
        work.go.set()
        await asyncio.wait_for(stopping, PATIENCE_S)
        assert (await other.take(1))[0] == []
        found = (await queue.groups())[0]
    assert (found.in_flight, found.idle, before.in_flight) == (0, True, 1)
    assert work.ended == 1


async def leases_of(queue: Queue) -> list[int]:
    _, due, *_ = queue.keys.group("g")
    flat = await redis(queue, "ZRANGE", due, 0, -1, "WITHSCORES")
    return [int(float(each)) for each in flat[1::2]]


async def renewed(queue: Queue, before_ms: int) -> bool:
    return min(await leases_of(queue)) > before_ms


async def until_async(found: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await found():  # noqa: ASYNC110  # Redis publishes no change of a lease
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("kind", ["task", "thread"])
@pytest.mark.parametrize("how", ["stop", "aclose", "bus", "cancel"])
async def test_a_message_stays_with_a_group_that_stops_until_its_handler_has_ended(
    redis_url: str, fresh: Fresh, kind: str, how: str
) -> None:
    work = Work()
    async with Bus(redis_url) as watching, watching.queue(fresh()) as queue:
        await queue.push("one")
        bus = await Bus(redis_url).start()
        reading = bus.queue(queue.name)
        await reading.attach()
        group = await reading.group("g", shared=True, lease_s=1).__aenter__()
        handling = asyncio.ensure_future(group.each(work.handler(kind)))
        await until(work.begun.is_set)
        if how == "cancel":
            if kind == "task":  # it is cancelled, as asked, and its message is free at once
                handling.cancel()
                await asyncio.wait([handling])
                await bus.aclose()
                async with queue.group("g", shared=True) as other:
                    assert [each.text for each in (await other.take(1))[0]] == ["one"]
                return
            handling.cancel()
            stopping: asyncio.Task[Any] = asyncio.ensure_future(asyncio.wait([handling]))
        else:
            end = bus.aclose if how == "bus" else getattr(group, how)
            stopping = asyncio.ensure_future(end())
        await no_other_gets_it(queue, stopping, work)
        if how != "cancel":
            assert await asyncio.wait_for(handling, PATIENCE_S) == 1
        await bus.aclose()


def test_a_group_of_a_synchronous_bus_keeps_its_message_until_the_function_has_returned(
    redis_url: str, fresh: Fresh
) -> None:
    work, name = Work(), fresh()
    with Bus.sync(redis_url) as watching, watching.queue(name) as queue:
        queue.push("one")
        with Bus.sync(redis_url) as bus, bus.queue(name) as reading:
            group: Any = reading.group("g", shared=True, lease_s=1)
            group.__enter__()
            handling = threading.Thread(target=group.each, args=(work.in_thread,))
            handling.start()
            assert work.begun.wait(PATIENCE_S)
            stopping = threading.Thread(target=group.stop)
            stopping.start()
            wait_until(lambda: not group._thing._running)
            other: Any
            with queue.group("g", shared=True) as other:
                wait_until(lambda: queue.groups()[0].in_flight == 1)
                assert other.take(1)[0] == []
                assert stopping.is_alive()
                work.go.set()
                stopping.join(PATIENCE_S)
                handling.join(PATIENCE_S)
                assert other.take(1)[0] == []
                assert queue.groups()[0].idle
    assert work.ended == 1


async def body_of(group: Any, work: Work) -> None:
    async for batch in group.batches():
        await work.in_task(batch[0])
        await group.ack(batch)


@pytest.mark.parametrize("shared", [True, False])
async def test_a_batch_stays_with_a_group_that_stops_until_the_body_of_its_loop_has_acked(
    redis_url: str, fresh: Fresh, shared: bool
) -> None:
    work = Work()
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        await queue.push("one")
        options: Any = {"shared": True, "lease_s": 1} if shared else {}
        group = await queue.group("g", **options).__aenter__()
        reading = asyncio.ensure_future(body_of(group, work))
        await until(work.begun.is_set)
        stopping = asyncio.ensure_future(group.stop())
        if shared:
            await no_other_gets_it(queue, stopping, work)
        else:
            async with queue.group("g") as other:
                waiting = asyncio.ensure_future(anext(other.batches()))
                await until(lambda: not group._running)
                assert group.holds
                assert not stopping.done()
                work.go.set()
                await asyncio.wait_for(stopping, PATIENCE_S)
                await queue.push("two")
                assert [each.text for each in await asyncio.wait_for(waiting, PATIENCE_S)] == [
                    "two"
                ]
        await asyncio.wait_for(reading, PATIENCE_S)


@pytest.mark.parametrize("consumer", [False, True])
@pytest.mark.parametrize("how", ["stop", "bus"])
async def test_a_partition_stays_with_a_member_that_stops_until_its_batch_is_acked(
    redis_url: str, fresh: Fresh, how: str, consumer: bool
) -> None:
    work, name = Work(), fresh()
    async with Bus(redis_url) as watching, watching.topic(name, 1) as topic:
        await topic.push("one")
        bus = await Bus(redis_url).start()
        read = bus.topic(name)
        made: Any = bus.consumer([read], group="g") if consumer else read.group("g")
        member = await made.__aenter__()
        reading = asyncio.ensure_future(body_of(member, work))
        await until(work.begun.is_set)
        stopping = asyncio.ensure_future(bus.aclose() if how == "bus" else member.stop())
        async with topic.group("g") as other:
            waiting = asyncio.ensure_future(anext(other.batches()))
            await until(lambda: not member._running)
            assert member.partitions in ([0], {topic.name: [0]})
            assert not stopping.done()
            work.go.set()
            await asyncio.wait_for(stopping, PATIENCE_S)
            await topic.push("two")
            assert [each.text for each in await asyncio.wait_for(waiting, PATIENCE_S)] == ["two"]
        await asyncio.wait_for(reading, PATIENCE_S)
        await bus.aclose()


async def test_a_body_whose_task_has_ended_or_that_stops_its_own_group_is_not_waited_for(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        await queue.push("one")
        for again in range(2):
            group = await queue.group("g", shared=True).__aenter__()
            async with asyncio.timeout(PATIENCE_S):
                batches = group.batches()
                [message] = await (
                    asyncio.ensure_future(anext(batches)) if again else anext(batches)
                )
                assert (message.text, message.tries) == ("one", 1)
                await asyncio.gather(group.stop())


@pytest.mark.parametrize("topic", [False, True])
@pytest.mark.parametrize("how", ["stop", "bus"])
async def test_a_job_stays_with_a_worker_that_stops_until_its_function_has_returned(
    redis_url: str, fresh: Fresh, topic: bool, how: str
) -> None:
    work, name = Work(), fresh()
    async with Bus(redis_url) as watching:
        bus = await Bus(redis_url).start()
        if topic:
            jobs: Any = bus.topic(name, 1).jobs()
        else:
            jobs = bus.jobs(name)
        await jobs.__aenter__()
        worker = jobs.worker("g", start="earliest", lease_s=1)(work.in_thread)
        await worker.__aenter__()
        await jobs.send(jobs.new())
        await until(work.begun.is_set)
        async with watching.queue(f"{name}/0" if topic else name) as queue:
            end = bus.aclose if how == "bus" else worker.stop
            await no_other_gets_it(queue, asyncio.ensure_future(end()), work)
        await bus.aclose()


async def test_a_coroutine_that_cleans_up_for_longer_than_its_lease_keeps_its_job(
    redis_url: str, fresh: Fresh
) -> None:
    work = Work()

    async def slow_to_end(job: Job) -> None:
        try:
            work.begun.set()
            await asyncio.Event().wait()
        finally:
            await until(work.go.is_set)
            work.ended += 1

    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:
        worker = await jobs.worker("g", start="earliest", lease_s=1)(slow_to_end).__aenter__()
        await jobs.send(jobs.new())
        await until(work.begun.is_set)
        stopping = asyncio.ensure_future(worker.stop())
        async with jobs.queue.group("g", shared=True) as other:
            [due_ms] = await leases_of(jobs.queue)
            await until_async(lambda: renewed(jobs.queue, due_ms))
            assert (await other.take(1))[0] == []
            work.go.set()
            await asyncio.wait_for(stopping, PATIENCE_S)
            await until_async(lambda: other.take(1))
    assert work.ended == 1


async def test_the_deadline_ends_the_wait_for_a_function(redis_url: str, fresh: Fresh) -> None:
    work = Work()
    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:
        clock = LoopClock()
        worker = await jobs.worker("g", start="earliest", deadline_s=20)(
            work.in_thread
        ).__aenter__()
        await jobs.send(jobs.new())
        await until(work.begun.is_set)
        stopping = asyncio.ensure_future(worker.stop())
        await asyncio.sleep(0)
        clock.ahead_s += 20
        await asyncio.wait_for(stopping, PATIENCE_S)
        work.go.set()
        assert (await jobs.queue.groups())[0].waiting == 1  # for its next try
        assert not worker.running


# -- a handler that ends its own holder --------------------------------------------------------


async def together(make: Callable[[], Any]) -> None:
    """As programs do that stop several things at once."""
    await asyncio.gather(make())


async def alone(make: Callable[[], Any]) -> None:
    await make()


@pytest.mark.parametrize("called", [alone, together])
@pytest.mark.parametrize("what", ["stop", "drain", "aclose", "bus", "workers"])
@pytest.mark.parametrize("topic", [False, True])
async def test_a_handler_may_end_its_own_worker_and_its_bus(
    redis_url: str, fresh: Fresh, topic: bool, what: str, called: Any
) -> None:
    bus = await Bus(redis_url).start()
    name, ended = fresh(), asyncio.Event()
    jobs: Any = bus.topic(name, 2).jobs() if topic else bus.jobs(name)

    async def last(job: Job) -> None:
        await called(
            {"bus": bus.aclose, "workers": workers.drain}.get(what) or getattr(worker, what)
        )
        ended.set()

    await jobs.__aenter__()
    worker = jobs.worker("g", start="earliest")(last)
    workers = bus.workers(worker, limit=2)
    running = asyncio.ensure_future(workers.run() if what == "workers" else worker.run())
    await jobs.send(jobs.new())
    async with asyncio.timeout(PATIENCE_S):
        await ended.wait() if what != "bus" else None
        await asyncio.wait([running])
        await bus.aclose()
    async with Bus(redis_url) as after, after.queue(f"{name}/0" if topic else name) as queue:
        assert all(not each.in_flight for each in await queue.groups())


@pytest.mark.parametrize("kind", ["task", "thread"])
@pytest.mark.parametrize("what", ["stop", "aclose", "bus"])
async def test_a_handler_of_each_may_end_its_own_group_and_its_bus(
    redis_url: str, fresh: Fresh, what: str, kind: str
) -> None:
    bus, loop = await Bus(redis_url).start(), asyncio.get_running_loop()
    name = fresh()
    queue = bus.queue(name)
    await queue.attach()
    group = await queue.group("g", shared=True).__aenter__()
    end = bus.aclose if what == "bus" else getattr(group, what)

    async def in_task(message: LeasedMessage) -> None:
        await end()

    def in_thread(message: LeasedMessage) -> None:
        asyncio.run_coroutine_threadsafe(end(), loop).result(PATIENCE_S)

    await queue.push("one")
    async with asyncio.timeout(PATIENCE_S):
        assert await group.each(in_task if kind == "task" else in_thread) == 1
        await bus.aclose()
    async with Bus(redis_url) as after, after.queue(name) as again:
        assert (await again.groups())[0].idle


async def test_a_handler_that_waits_for_its_own_message_is_told(
    redis_url: str, fresh: Fresh
) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.queue(fresh()) as queue,
        queue.group("g", shared=True) as group,
    ):

        async def handle(message: LeasedMessage) -> None:
            for wait in (group.wait_idle, group.wait_drained):
                with pytest.raises(StateError, match="wait outside of it"):
                    await asyncio.gather(wait())

        await queue.push("one")
        async with asyncio.timeout(PATIENCE_S):
            assert await group.each(handle, most=1) == 1
        assert (await queue.groups())[0].idle


@pytest.mark.parametrize("called", [alone, together])
@pytest.mark.parametrize("what", ["shared", "ordered", "topic"])
async def test_the_body_of_a_loop_may_close_its_bus(
    redis_url: str, fresh: Fresh, what: str, called: Any
) -> None:
    bus, name = await Bus(redis_url).start(), fresh()
    holder: Any = bus.topic(name, 1) if what == "topic" else bus.queue(name)
    await holder.attach()
    options: Any = {"shared": True} if what == "shared" else {}
    group = await holder.group("g", **options).__aenter__()
    await holder.push("one")
    async with asyncio.timeout(PATIENCE_S):
        async for [message] in group.batches():
            assert message.text == "one"
            await called(bus.aclose)
    async with Bus(redis_url) as after:
        again: Any = after.topic(name) if what == "topic" else after.queue(name)
        async with again, again.group("g", **options) as other:
            async for [message] in other.batches():
                assert (message.text, getattr(message, "tries", 1)) == ("one", 1)
                break


def test_the_body_of_a_loop_may_close_its_synchronous_bus(redis_url: str, fresh: Fresh) -> None:
    bus, name, seen = Bus.sync(redis_url), fresh(), list[str]()

    def read() -> None:
        bus.start()
        queue = bus.queue(name)
        queue.attach()
        queue.push("one")
        group: Any = queue.group("g", shared=True).__enter__()
        for [message] in group.batches():
            seen.append(message.text)
            bus.close()
            break

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(PATIENCE_S)
    assert (reading.is_alive(), seen) == (False, ["one"])


async def test_a_task_keeps_no_batch_of_loops_that_have_ended(redis_url: str, fresh: Fresh) -> None:
    def left() -> list[WorkInHand[Any]]:
        gc.collect()
        return [each for each in gc.get_objects() if isinstance(each, WorkInHand)]

    async def handle(message: LeasedMessage) -> None:
        """Accept it."""

    async with (
        Bus(redis_url) as bus,
        bus.queue(fresh()) as queue,
        queue.group("g", shared=True) as group,
    ):
        for _ in range(3):
            await queue.push("one")
            await queue.push("two")
            assert await group.each(handle, most=1) == 1
            async for batch in group.batches(most=1):
                await group.ack(batch)
                break
        await until(lambda: all(each.batch is None for each in left()))
        kept = (each for value in copy_context().values() if type(value) is tuple for each in value)
        assert sum(isinstance(each, WorkInHand) for each in kept) <= 1


def test_a_function_may_close_its_synchronous_bus(redis_url: str, fresh: Fresh) -> None:
    bus, name = Bus.sync(redis_url), fresh()
    bus.start()
    queue = bus.queue(name)
    queue.attach()
    group = queue.group("g", shared=True)
    group.__enter__()
    queue.push("one")
    handling = threading.Thread(target=group.each, args=(lambda message: bus.close(),), daemon=True)
    handling.start()
    handling.join(PATIENCE_S)
    assert not handling.is_alive()
    bus.close()
    with Bus.sync(redis_url) as after, after.queue(name) as again:
        assert again.groups()[0].idle


# -- the last moments of a loop ----------------------------------------------------------------


def test_a_call_that_a_closing_loop_has_taken_and_never_runs_ends_with_an_error() -> None:
    loop, errors = asyncio.new_event_loop(), []

    async def entered() -> LoopThread:
        return LoopThread.of_running_loop()

    async def nothing() -> None:
        """The work of the call."""

    threads = loop.run_until_complete(entered())

    def call() -> None:
        try:
            threads.call(nothing())
        except StateError as error:
            errors.append(error)

    calling = threading.Thread(target=call, daemon=True)
    calling.start()
    wait_until(lambda: loop._ready)  # type: ignore[attr-defined]
    loop.close()
    calling.join(PATIENCE_S)
    [error] = errors
    assert "it is closed. End its handlers before the loop of the bus ends" in str(error)
