"""Several calls under way at once, and calls given up half way: every reply reaches its own caller
or is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import LinkLost, ServerRefused
from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import RedisCall, command, script
from busmq_spark.redis_io.async_link import AsyncLink
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import parse
from tests.conftest import FreshKeys, link_to
from tests.redis_io.fakes import CLOSE, FakeRedis, says
from tests.stored import read_at

AGAIN = command("GET", "n")


# The blocking link's streams


def test_a_stream_gives_replies_in_order_with_calls_under_way(link: SyncLink) -> None:
    taken: list[int] = []

    def calls() -> Iterator[RedisCall]:
        for n in range(50):
            taken.append(n)
            yield command("ECHO", n)

    for n, reply in enumerate(link.stream(calls(), 3)):
        assert reply == b"%d" % n
        assert len(taken) == min(50, n + 3)


def test_a_stream_survives_a_script_cache_flushed_in_its_middle(fresh_keys: FreshKeys) -> None:
    with EmbeddedRedis() as server:
        keys, link = fresh_keys(), link_to(server.url)
        link.run(queue.attach(keys, "b", ttl_s=60))
        calls = [
            script("push", keys.peer_keys, (keys.available, b"%d" % n), idempotent=False)
            for n in range(1, 40)
        ]
        for first, stored in link.stream(calls, 3):
            assert stored == 1
            assert first
            server.command("SCRIPT", "FLUSH")
        assert [m.value for m in link.run(read_at(keys, 0, 99))] == [
            b"%d" % n for n in range(1, 40)
        ]
        link.close()


def test_replies_of_a_stream_closed_early_are_dropped(link: SyncLink) -> None:
    stream = link.stream([command("ECHO", n) for n in range(9)], 4)
    assert next(stream) == b"0"
    stream.close()
    assert link.execute(command("ECHO", "mine")) == b"mine"


def test_a_call_in_the_middle_of_a_stream_is_a_mistake_and_takes_no_reply_of_it(
    link: SyncLink,
) -> None:
    stream = link.stream([command("ECHO", n) for n in range(9)], 4)
    next(stream)
    with pytest.raises(AssertionError):
        link.execute(command("ECHO", "mine"))
    assert list(stream) == [b"%d" % n for n in range(1, 9)]


def test_an_error_in_a_stream_is_translated_and_the_link_is_usable_again(link: SyncLink) -> None:
    stream = link.stream([command("ECHO", "a"), command("NOSUCHCOMMAND"), command("ECHO", "b")], 3)
    assert next(stream) == b"a"
    with pytest.raises(ServerRefused):
        next(stream)
    assert link.execute(command("ECHO", "mine")) == b"mine"


def test_a_stream_repeats_nothing_when_the_link_breaks() -> None:
    with FakeRedis(says(b":1\r\n", CLOSE, b":3\r\n")) as fake:
        made = SyncLink(fake.server)
        stream = made.stream([AGAIN] * 3, 1)
        assert next(stream) == 1
        with pytest.raises(LinkLost):
            next(stream)
        assert len(fake.seen) == 2
        made.close()


def test_posted_calls_are_answered_in_order(link: SyncLink) -> None:
    for n in range(5):
        link.post(command("ECHO", n))
    assert [link.fetch() for _ in range(5)] == [b"%d" % n for n in range(5)]


# The asyncio link's cancellation


@pytest.mark.parametrize("connected", [True, False])
def test_a_cancelled_call_leaves_no_reply_for_the_next(connected: bool) -> None:
    async def scenario(server: EmbeddedRedis) -> Any:
        link = AsyncLink(parse(server.url)[0])
        if connected:
            await link.execute(command("PING"))
        server.pause()
        task = asyncio.create_task(link.execute(command("ECHO", "cancelled")))
        await asyncio.wait(
            [task], timeout=0.05
        )  # on to where it waits for a reply that does not come
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        server.resume()
        try:
            return await link.execute(command("ECHO", "mine"))
        finally:
            await link.close()

    with EmbeddedRedis() as server:
        assert asyncio.run(scenario(server)) == b"mine"


def test_tasks_that_share_a_link_get_their_own_replies(redis_url: str) -> None:
    async def scenario() -> list[Any]:
        link = AsyncLink(parse(redis_url)[0])
        try:
            return await asyncio.gather(
                *(link.execute([command("ECHO", n), command("ECHO", -n)]) for n in range(50))
            )
        finally:
            await link.close()

    assert asyncio.run(scenario()) == [[b"%d" % n, b"%d" % -n] for n in range(50)]
