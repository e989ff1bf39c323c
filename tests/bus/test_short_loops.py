"""The short forms: decorators of events, and loops over a queue."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.jobs.job import Job
from busmq_spark.bus.queue.base_consumption import ReliableMessage
from busmq_spark.bus.queue.shared_group import SharedGroup
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import JobFailed, StateError
from busmq_spark.queue.message import Message
from tests.bus.conftest import OpenBus
from tests.bus.job_tools import concat
from tests.bus.tools import UNTIL_S
from tests.conftest import Fresh


async def test_on_and_once_decorate_a_handler(redis_server: EmbeddedRedis) -> None:
    bus, seen = Bus(redis_server.url), []

    @bus.on("online")
    def every() -> None:
        seen.append("every")

    @bus.once("online")
    async def first() -> None:
        seen.append("first")

    for _ in range(2):
        async with bus:
            await bus.queue("q").exists()
    assert sorted(seen) == ["every", "every", "first"]
    bus.off("online", every)
    async with bus:
        assert sorted(seen) == ["every", "every", "first"]


def test_a_handler_is_decorated_without_a_loop_too(redis_server: EmbeddedRedis) -> None:
    bus, seen = Bus.sync(redis_server.url), []
    with bus:

        @bus.on("offline")
        def over(error: object) -> None:
            seen.append(error)

    assert seen == [None]


async def test_a_queue_is_a_loop_over_its_messages(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        await queue.push_many("abc")
        seen = []
        async for message in queue:
            seen.append(message.text)
            if len(seen) == 3:
                break
        assert seen == ["a", "b", "c"]


async def test_a_reliable_message_acks_itself(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        await queue.push_many("abc")
        async for message in queue.consume(reliable=True, max=2):
            if message.id == 1:
                await message.ack()
        await queue.stop()
        again = [each.id async for each in queue.consume(reliable=True, max=2)]
        assert again == [2, 3]
        assert pickle.loads(pickle.dumps(message)) == Message(2, b"b")
        await queue.stop()
        await queue.push("d")
        async for message in queue.consume(max=1):
            with pytest.raises(StateError, match="not taken reliably"):
                await message.ack()


async def test_every_reliable_message_of_a_batch_acks_itself(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        await queue.push_many("abc")
        seen = 0
        async for batch in queue.consume(reliable=True, max=3).batches():
            assert {type(message) for message in batch} == {ReliableMessage}
            await batch[-1].ack()
            seen += len(batch)
        assert seen == 3
        await queue.stop()
        await queue.push("d")
        assert [each.id async for each in queue.consume(reliable=True, max=1)] == [4]


async def test_a_reliable_message_that_is_replaced_acks_itself(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        await queue.push_many("ab")
        async for message in queue.consume(reliable=True, max=1):
            await message._replace(value=b"c").ack()
            with pytest.raises(StateError, match="not taken reliably"):
                await ReliableMessage._make(message).ack()
        await queue.stop()
        assert [each.id async for each in queue.consume(reliable=True, max=1)] == [2]


async def test_a_key_and_a_pattern_may_be_one_text(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        assert await bus.subscribe(f"{queue.name}.*", into=queue.name) == 1
        receipt = await bus.publish(f"{queue.name}.b", {"n": 1})
        assert receipt.destinations == (queue.name,)
        assert await bus.unsubscribe(f"{queue.name}.*", into=queue.name) == 1


async def test_a_plain_function_works_in_a_thread_and_its_value_is_the_result(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:
        mine = threading.get_ident()

        @jobs.worker("g")
        def double(job: Any) -> dict[str, Any]:
            number = job.load("number")["number"]
            return {"double": 2 * number, "elsewhere": threading.get_ident() != mine}

        async with double:
            job = jobs.new()
            job["number"] = 21
            done = await jobs.send(job, wait=["g"], timeout_s=UNTIL_S)
        assert done["g"].ok
        assert await jobs.get(job.id).result() == {"double": 42, "elsewhere": True}


async def test_a_plain_function_that_returns_a_coroutine_fails(
    redis_url: str, fresh: Fresh
) -> None:
    def forward(job: Job) -> Any:
        return concat(job)

    async with (
        Bus(redis_url) as bus,
        bus.jobs(fresh()) as jobs,
        jobs.worker("g", tries=1)(forward),
    ):
        with pytest.raises(JobFailed, match="make the handler a coroutine function"):
            await jobs.send(jobs.new(), wait=["g"], timeout_s=UNTIL_S)


async def test_a_coroutine_function_has_a_result_too_and_none_is_none(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:

        @jobs.worker("g")
        async def work(job: Any) -> Any:
            return (await job.load("value"))["value"]

        async with work:
            for value in ("kept", None, [1, 2]):
                job = jobs.new()
                job["value"] = value
                await jobs.send(job, wait=["g"], timeout_s=UNTIL_S)
                assert await job.result() == value


async def test_only_what_a_handler_returned_becomes_the_result(
    redis_url: str, fresh: Fresh
) -> None:
    returned: list[Any] = [None, "first", None]

    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:

        @jobs.worker("g")
        async def work(job: Any) -> Any:
            job["result"] = "never saved"
            return returned.pop(0)

        async with work:
            job = jobs.new()
            for result in (None, "first", "first"):
                await jobs.send(job, wait=["g"], timeout_s=UNTIL_S)
                assert await job.result() == result


def test_a_worker_runs_without_a_loop(redis_url: str, fresh: Fresh) -> None:
    with Bus.sync(redis_url) as bus, bus.jobs(fresh()) as jobs:

        @jobs.worker("g")
        def shout(job: Any) -> str:
            return str(job.load("word")["word"]).upper()

        with shout:
            job = jobs.new()
            job["word"] = "hello"
            jobs.send(job, wait=["g"], timeout_s=UNTIL_S)
            assert job.result() == "HELLO"


async def test_a_worker_backs_off_twice_as_long_each_time(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = []
    retry = SharedGroup.retry

    async def note(self: Any, deliveries: Any, *, delay_s: float, error: object) -> Any:
        pauses.append(delay_s)
        return await retry(self, deliveries, delay_s=0, error=error)

    monkeypatch.setattr(SharedGroup, "retry", note)
    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:

        @jobs.worker("g", tries=4, backoff_s=8)
        def fail(job: Any) -> None:
            raise ValueError

        async with fail:
            done = await jobs.send(jobs.new(), wait=["g"], timeout_s=UNTIL_S, fail_fast=False)
        assert not done["g"].ok
    assert [low <= each <= 2 * low for each, low in zip(pauses, (4, 8, 16), strict=True)] == [
        True
    ] * 3


async def test_a_result_that_cannot_be_stored_leaves_the_job_done(
    redis_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:

        @jobs.worker("g")
        async def work(job: Any) -> object:
            return object()

        async with work:
            job = jobs.new()
            done = await jobs.send(job, wait=["g"], timeout_s=UNTIL_S)
        assert done["g"].ok
        assert await job.result() is None
        assert "its result is not kept" in caplog.text


async def test_an_object_with_a_coroutine_function_works_in_the_loop(
    redis_url: str, fresh: Fresh
) -> None:
    class Handler:
        async def __call__(self, job: Any) -> int:
            return threading.get_ident()

    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:
        async with jobs.worker("g")(Handler()):
            job = jobs.new()
            await jobs.send(job, wait=["g"], timeout_s=UNTIL_S)
        assert await job.result() == threading.get_ident()


async def test_a_function_that_hangs_takes_no_place_of_others(redis_url: str, fresh: Fresh) -> None:
    hold = threading.Event()
    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:

        @jobs.worker("g", limit=1, deadline_s=1, tries=1)
        def work(job: Any) -> int:
            if job.load("hangs")["hangs"]:
                hold.wait()
            return 1

        async with work:
            late, good = jobs.new(), jobs.new()
            late["hangs"], good["hangs"] = True, False
            with pytest.raises(JobFailed, match="BUSMQ_WORK_TIMEOUT"):
                await jobs.send(late, wait=["g"], timeout_s=UNTIL_S)
            assert (await jobs.send(good, wait=["g"], timeout_s=UNTIL_S))["g"].ok
        hold.set()
