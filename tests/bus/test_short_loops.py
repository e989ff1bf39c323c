"""The short forms: decorators of events, and loops over a queue."""

from __future__ import annotations

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedRedis


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
