"""The clock of a queue in tests: what it has noted, and how much time has gone by since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.times_of_ids import NewestIdAtTime

Redis = Callable[..., Any]
SECOND, HOUR, DAY = 1000, 3_600_000, 86_400_000


def npm_push(redis: Redis, keys: QueueKeys, count: int = 1) -> None:
    """As a peer does, which notes nothing."""
    for _ in range(count):
        redis("RPUSH", keys.messages, redis("INCR", keys.msgid), "v")


def noted(redis: Redis, keys: QueueKeys) -> list[NewestIdAtTime]:
    """The clock as it is stored: the list, and behind it the field of the metadata."""
    stored = [int(item) for item in redis("LRANGE", keys.clock, 0, -1)]
    stored += [
        int(item) for item in (redis("HGET", keys.metadata, "clock") or b"").split(b":") if item
    ]
    return [NewestIdAtTime(ms, id) for ms, id in zip(stored[0::2], stored[1::2], strict=True)]


def store(redis: Redis, keys: QueueKeys, known: list[NewestIdAtTime]) -> None:
    redis("DEL", keys.clock)
    words = [word for each in known[:-1] for word in (each.ms, each.id)]
    for at in range(0, len(words), 10_000):
        redis("RPUSH", keys.clock, *words[at : at + 10_000])
    redis("HSET", keys.metadata, "clock", f"{known[-1].ms}:{known[-1].id}")


def pass_by(redis: Redis, keys: QueueKeys, ms: int) -> None:
    """As if so much time had gone by since all that was noted."""
    store(redis, keys, [NewestIdAtTime(each.ms - ms, each.id) for each in noted(redis, keys)])
