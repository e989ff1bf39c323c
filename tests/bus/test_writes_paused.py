"""A Redis that refuses writes for a while: pushes, groups, members, workers and services go on
after it, and nothing is lost or doubled.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.jobs.job import Job
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.embedded import EmbeddedRedis
from tests.bus.tools import UNTIL_S, until
from tests.support_writes import CAUSES, writes_paused


@pytest.mark.parametrize("cause", CAUSES)
async def test_everything_goes_on_once_writes_are_accepted_again(
    cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    seen: dict[str, list[str]] = {
        "shared": [],
        "ordered": [],
        "member": [],
        "worker": [],
        "each": [],
    }

    async def read_shared(queue: Queue) -> None:
        async with queue.group("shared", shared=True) as group:
            async for batch in group.batches():
                assert await group.ack(batch) == []
                seen["shared"] += [each.text for each in batch]

    async def read_ordered(queue: Queue) -> None:
        async with queue.group("ordered") as group:
            async for batch in group.batches():
                await group.ack(batch)
                seen["ordered"] += [each.text for each in batch]

    async def work(job: Job) -> None:
        seen["worker"].append((await job.load("n"))["n"])

    with EmbeddedRedis() as server:
        async with AsyncExitStack() as stack:
            bus = await stack.enter_async_context(Bus(server.url))
            queue = await stack.enter_async_context(bus.queue("q"))
            other = await stack.enter_async_context(bus.queue("other"))
            jobs = await stack.enter_async_context(bus.jobs("j"))
            topic = await stack.enter_async_context(bus.topic("t", 1))
            member = await stack.enter_async_context(topic.group("member"))
            await stack.enter_async_context(jobs.worker("g")(work))
            provider, service = bus.service("s"), bus.service("s")
            await provider.serve(lambda data: data)
            await service.connect(timeout_s=UNTIL_S)

            async def read_topic() -> None:
                async for batch in member.batches():
                    await member.ack(batch)
                    seen["member"] += [each.text for each in batch]

            tasks = [
                bus._spawn(read, "reading")
                for read in (read_shared(queue), read_ordered(queue), read_topic())
            ]
            other.each(lambda message: seen["each"].append(message.text))

            async def use_all(text: str) -> None:
                job = jobs.new()
                job["n"] = text
                await asyncio.gather(
                    queue.push(text),
                    other.push(text),
                    topic.push(text),
                    jobs.send(job, wait=["g"], timeout_s=UNTIL_S),
                )
                assert await service.request(text) == text

            await use_all("before")
            await until(lambda: all(found == ["before"] for found in seen.values()))
            with writes_paused(server, cause, count=20):
                await use_all("during")
            await use_all("after")
            await until(
                lambda: all(found == ["before", "during", "after"] for found in seen.values())
            )
            for task in tasks:
                task.cancel()
    said = [record for record in caplog.records if "BUSMQ_WRITES_PAUSED" in record.getMessage()]
    assert 1 <= len([record for record in said if record.levelno >= logging.WARNING]) <= 5
