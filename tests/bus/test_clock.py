"""The clock of a queue, as programs of the bus use it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.errors import ConfigError, TimeUnknown
from busmq_spark.queue.command_generators import command
from tests.bus.tools import UNTIL_S, redis
from tests.clocks import DAY, HOUR, SECOND
from tests.conftest import Fresh


async def pass_by(queue: Queue, ms: int) -> None:
    """As if so much time had gone by since all that was noted."""
    link = queue.bus.servers.commands[queue.server]
    found = [int(item) for item in await link.execute(command("LRANGE", queue.keys.clock, 0, -1))]
    for at in range(0, len(found), 2):
        await link.execute(command("LSET", queue.keys.clock, at, found[at] - ms))
    newest = (await link.execute(command("HGET", queue.keys.metadata, "clock"))).decode().split(":")
    await link.execute(
        command("HSET", queue.keys.metadata, "clock", f"{int(newest[0]) - ms}:{newest[1]}")
    )


async def test_ids_are_found_by_time_and_times_by_id(place: dict[str, Any], fresh: Fresh) -> None:
    async with Bus(**place) as bus, bus.queue(fresh()) as queue:
        for _ in range(2):
            await queue.push_many(["a", "b", "c"])
            await pass_by(queue, HOUR)
        came = await queue.ms_of(4)
        assert came is not None
        at = datetime.fromtimestamp(came / 1000, UTC)
        for time in (
            came,
            "-90m",
            at,
            at.isoformat(),
            at + timedelta(minutes=-1),
            -90 * 60 * SECOND,
        ):
            assert await queue.id_at(time) == 3, time
        assert await queue.id_at("-1m") == 6
        assert await queue.id_at(-DAY) == 0
        assert await queue.ms_of(7) is None
        for bad in (
            "soon",
            datetime(2026, 5, 1),  # noqa: DTZ001  # that is what is bad
            "2026-05-01T12:00:00",
            "-10x",
            "-10 messages",
            -0.5,
        ):  # that is what is bad
            with pytest.raises(
                ConfigError, match=r"the time is .*; expected -10m, or a time such as"
            ):
                await queue.id_at(bad)  # type: ignore[arg-type]


async def test_a_subscription_begins_at_a_time_and_says_how_long_its_first_message_waits(
    place: dict[str, Any], fresh: Fresh
) -> None:
    async with Bus(**place) as bus, bus.queue(fresh()) as queue:
        await queue.subscribe("all")
        for _ in range(2):
            await queue.push_many(["a", "b", "c"])
            await pass_by(queue, HOUR)
        assert await queue.subscribe("late", "-90m") == 3
        assert await queue.subscribe("newest", "-2 messages") == 4
        assert await queue.subscribe("none", "latest") == 6
        found = {each.name: each for each in await queue.subscriptions()}
        assert {
            name: each.behind_s is not None and each.behind_s // 3600
            for name, each in found.items()
        } == {
            "all": 2,
            "late": 1,
            "newest": 1,
            "none": 0,
        }
        with pytest.raises(TimeUnknown, match="none is known"):
            await bus.queue(fresh()).id_at("-1m")


async def test_a_consumer_notes_when_messages_of_peers_were_there(
    place: dict[str, Any], fresh: Fresh
) -> None:
    async with Bus(**place) as bus, bus.queue(fresh()) as queue:

        async def last_noted() -> bytes:
            return (await redis(queue, "HGET", queue.keys.metadata, "clock") or b"").partition(
                b":"
            )[2]

        for id in (1, 2):
            await redis(
                queue,
                "RPUSH",
                queue.keys.messages,
                await redis(queue, "INCR", queue.keys.msgid),
                "v",
            )  # as a peer does
            [message] = [each async for each in queue.consume(max=1)]
            assert message.id == id
            async with asyncio.timeout(UNTIL_S):
                # What is in Redis publishes no change
                while await last_noted() != b"%d" % id:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)


async def test_what_is_taken_while_the_bus_ends_is_no_error(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        pass
    queue._note_time()


async def test_over_federation_it_is_refused_with_what_to_do() -> None:
    async with Bus(federate="ws://127.0.0.1:9", federate_secret="x" * 20) as bus:
        far = bus.federate(bus.queue("orders"))
        for call in (far.id_at("-1m"), far.ms_of(1)):
            with pytest.raises(
                ConfigError,
                match=(
                    "cannot be said over federation; call it on a bus at the Redis of queue"
                    " 'orders'"
                ),
            ):
                await call


def test_the_same_without_a_loop(redis_url: str, fresh: Fresh) -> None:
    with Bus.sync(redis_url) as bus, bus.queue(fresh()) as queue:
        queue.push("a")
        assert queue.id_at(-DAY) == 0
        assert queue.ms_of(1) is not None
