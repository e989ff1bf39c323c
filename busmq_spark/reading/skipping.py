"""Messages that one reader passes over, so that a row it cannot handle does not stop it.

A mark beside the queue names the ids (lua/skip.lua). Only a queue without a holder gets a mark, and
a reader looks for marks when it takes the lease: while it reads, they stay as they are. So a batch
that Spark repeats has the same rows, unless an operator stopped the query and skipped one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from busmq_spark.queue.command_generators import Flow, command, script
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import Range
from busmq_spark.queue.queue import MIN_RECORD_TTL_S
from busmq_spark.reading.reader_operations import checked_id

MAX_SKIPPED_IDS = 100
"""Most marks of one reader of a queue."""


def skip(
    keys: QueueKeys, reader: str, id: int, dead: str = "", *, mark: bool = True
) -> Flow[tuple[str, str]]:
    """Mark a message, or with ``mark`` false only see whether that is possible. The result is a
    status with a detail: ok, again (it is marked already), missing, busy and the holder, gone, or
    full.
    """
    status, detail = yield script(
        "skip",
        (keys.metadata, keys.messages, keys.acks, keys.lease(reader)),
        (reader, id, MAX_SKIPPED_IDS, MIN_RECORD_TTL_S, dead, int(mark)),
    )
    return status.decode(), detail.decode("utf-8", "replace")


def skipped_ids(queues: Sequence[QueueKeys], reader: str) -> Flow[list[tuple[int, ...]]]:
    """Return the ids of each queue that a reader passes over, rising."""
    replies = yield [command("HGET", keys.acks, f":skip:{reader}") for keys in queues]
    return [
        tuple(checked_id(keys.name, "skipped id", id) for id in (reply or b"").split(b",") if id)
        for keys, reply in zip(queues, replies, strict=True)
    ]


def ranges_without(ranges: Sequence[Range], skipped: Mapping[str, Sequence[int]]) -> list[Range]:
    """Return the ranges without the skipped ids of their queues: a range is cut at each."""
    found = []
    for part in ranges:
        first = part.first
        for id in skipped.get(part.queue, ()):
            if first <= id <= part.last:
                if first < id:
                    found.append(part._replace(first=first, last=id - 1))
                first = id + 1
        if first <= part.last:
            found.append(part._replace(first=first))
    return found
