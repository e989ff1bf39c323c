"""What tests of the sink have in common: staged rows, and what is stored in the end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from busmq_spark.queue.command_generators import Flow, RedisCall, Step, command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.writing.sink import STAGE_TTL_S, StagedList, encode_chunks


def stage(
    execute: Callable[[Step], Any], keys: QueueKeys, attempt: str, sizes: Sequence[int]
) -> tuple[StagedList, list[bytes]]:
    """Stage rows named after their attempt in chunks of these sizes, as a task does."""
    rows = [f"{attempt}.{i}".encode() for i in range(sum(sizes))]
    key = keys.stage(attempt)
    if rows:
        execute([command("RPUSH", key, *rows), command("EXPIRE", key, STAGE_TTL_S)])
    return StagedList(keys.name, 0, key, encode_chunks(sizes)), rows


def stored(execute: Callable[[Step], Any], keys: QueueKeys) -> list[tuple[int, bytes]]:
    flat = execute(command("LRANGE", keys.messages, 0, -1))
    return list(zip(map(int, flat[0::2]), flat[1::2], strict=True))


def numbered(rows: Sequence[bytes], first: int = 1) -> list[tuple[int, bytes]]:
    return list(enumerate(rows, first))


def replies(flow: Flow[Any], execute: Callable[[Step], Any]) -> Generator[None, None, Any]:
    """Run a flow call by call, also where it sends several in one round trip, between which Redis
    may serve others: the test decides when the next call is executed, or that none is.
    """
    step = next(flow)
    while True:
        found = []
        for call in [step] if isinstance(step, RedisCall) else step:
            yield
            found.append(execute(call))
        try:
            step = flow.send(found[0] if isinstance(step, RedisCall) else found)
        except StopIteration as done:
            return done.value
