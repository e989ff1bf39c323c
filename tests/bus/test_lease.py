"""One reliable consumer at a time, over processes: who takes over, and when."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.errors import QueueBusy
from tests.bus.tools import LONG_S, UNTIL_S, redis, renewed, until
from tests.conftest import Fresh
from tests.support import gone, wait_until

ROOT = Path(__file__).parents[2]
ONE = ["-m", "tests.bus.holder"]
# A process that leaves what it started when its input ends, as a shell with nohup does.
ORPHAN = ["-c", "from tests.bus.holder import leave; leave()"]


async def run(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, *words, cwd=ROOT, stdin=PIPE, stdout=PIPE
    )


async def lines(process: asyncio.subprocess.Process, many: int) -> list[int]:
    assert process.stdout is not None
    return [int(await process.stdout.readline()) for _ in range(many)]


async def prolong(queue: Queue) -> None:
    """The lease of a holder that is dead now, and renews it no more, ends long after the test."""
    assert await redis(queue, "PEXPIRE", queue.keys.lease(""), 1000 * LONG_S) == 1


async def test_who_waits_takes_over_at_once_when_the_holder_is_killed(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        await queue.push_many("abcd")
        holder = await run(*ONE, redis_url, queue.name)
        assert await lines(holder, 4) == [1, 2, 3, 4]
        with pytest.raises(QueueBusy):
            await anext(queue.consume(reliable=True, wait=False))
        consumption = queue.consume(reliable=True, last=1)
        waiting = asyncio.ensure_future(anext(consumption))
        await queue.ack(4)  # in vain: what another consumer holds is not ours
        assert not waiting.done()
        holder.kill()
        await holder.wait()
        await prolong(queue)
        async with asyncio.timeout(UNTIL_S):
            assert (await waiting).id == 2
        assert [(await anext(consumption)).id for _ in range(2)] == [3, 4]


async def test_who_does_not_wait_replaces_a_dead_holder_too(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        await queue.push("a")
        holder = await run(*ONE, redis_url, queue.name)
        assert await lines(holder, 1) == [1]
        holder.kill()
        await holder.wait()
        assert (await anext(queue.consume(reliable=True, wait=False))).id == 1


async def test_a_holder_outlives_the_process_that_started_it(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        await queue.push("a")
        parent = await run(*ORPHAN, redis_url, queue.name)
        [orphan] = await lines(parent, 1)
        try:
            async with asyncio.timeout(UNTIL_S):
                # Until it has it
                while not await redis(queue, "LLEN", queue.keys.toack):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await parent.communicate(b"")
            with pytest.raises(QueueBusy):
                await anext(queue.consume(reliable=True, wait=False))
        finally:
            os.kill(orphan, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: gone(orphan))
        await prolong(queue)
        assert (await asyncio.wait_for(anext(queue.consume(reliable=True)), UNTIL_S)).id == 1


async def test_the_lease_is_renewed_while_the_consumer_lives(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        await queue.push("a")
        await anext(queue.consume(reliable=True))
        key = queue.keys.lease("")
        await renewed(queue, key)
        await queue.stop()
        assert await redis(queue, "EXISTS", key) == 0
        await until(lambda: not queue.leased)
