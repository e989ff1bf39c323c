"""A loop that is blocked, or a process without CPU time, is no server that is silent."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis.exceptions as rx

from busmq_spark.queue.command_generators import command
from busmq_spark.redis_io import connection_factory
from busmq_spark.redis_io.async_link import AsyncLink
from busmq_spark.redis_io.event_loops import TURNS, LoopTimeout
from busmq_spark.redis_io.moving_endpoints import dial_async
from busmq_spark.redis_io.urls import RedisServerAddress
from tests.redis_io.fakes import FakeRedis

LIMIT_S = 0.05


@contextmanager
def turns_longer_than_the_limit() -> Iterator[None]:
    """Each turn of the running loop takes twice the limit, as without CPU time."""
    loop, is_on = asyncio.get_running_loop(), True

    def block() -> None:
        if is_on:
            time.sleep(2 * LIMIT_S)
            loop.call_soon(block)

    loop.call_soon(block)
    try:
        yield
    finally:
        is_on = False


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_factory, "CONNECT_TIMEOUT_S", LIMIT_S)


async def test_a_server_that_has_answered_is_there_however_late_the_loop_looks() -> None:
    with FakeRedis(lambda *_: b"+PONG\r\n") as fake, turns_longer_than_the_limit():
        connection = await dial_async(fake.server, LIMIT_S)
        await connection.disconnect(nowait=True)


async def test_a_call_whose_reply_is_there_is_not_overdue() -> None:
    with FakeRedis(lambda *_: b"$1\r\n7\r\n") as fake:
        link = AsyncLink(fake.server, 0.0, reply_s=LIMIT_S)
        with turns_longer_than_the_limit():
            for _ in range(3):
                assert await link.execute(command("INCR", "n", idempotent=False)) == b"7"
        await link.close()


async def test_a_silent_server_ends_the_attempt() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = RedisServerAddress("127.0.0.1", silent.getsockname()[1])
        with pytest.raises(rx.TimeoutError, match="Timeout reading from"):
            await dial_async(server, LIMIT_S)


async def test_a_limit_ends_what_does_not_end() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    with pytest.raises(TimeoutError):
        async with LoopTimeout(LIMIT_S) as limit:
            await count()
    assert limit.expired()
    assert turns >= TURNS


async def test_what_a_limit_is_around_can_be_cancelled_and_raises_its_own_errors() -> None:
    async def wait() -> None:
        async with LoopTimeout(60):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(TimeoutError, match="mine"):
        async with LoopTimeout(60) as limit:
            raise TimeoutError("mine")
    assert not limit.expired()
