"""What a message may be, and how many of them travel together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from busmq_spark.errors import MessageRefused

MAX_ID = 2**53 - 1
"""The largest id that Lua and JavaScript can still count."""
MAX_VALUE_BYTES = 512 * 1024 * 1024
"""Redis' own limit of one value (``proto-max-bulk-len``)."""
CHUNK_MESSAGES = 1000
"""Most messages in one script call: Lua's unpack dies near 8 000 values, and 1 000 small ones take Redis well under 1 ms."""
CHUNK_BYTES = 512 * 1024
"""Most bytes in one script call, so that large messages do not hold Redis long either; a single larger message goes alone."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message: ``id`` from 1 upwards without holes, ``value`` as the bytes stored in Redis (npm peers see UTF-8 text)."""

    id: int
    value: bytes


def chunks(values: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Cut values into runs of at most CHUNK_MESSAGES and CHUNK_BYTES; keeps order, loses none.

    Raises MessageRefused for a value over 512 MB, before anything of its run is yielded.
    """
    total = len(values)
    start = 0
    while start < total:
        stop = min(start + CHUNK_MESSAGES, total)
        run = values[start:stop]
        if sum(map(len, run)) > CHUNK_BYTES:
            stop = start + _fitting(run)
            run = values[start:stop]
        yield run
        start = stop


def _fitting(run: Sequence[bytes]) -> int:
    room = CHUNK_BYTES
    for count, value in enumerate(run):
        size = len(value)
        if size > MAX_VALUE_BYTES:
            raise MessageRefused(
                reason=f"a message of {size} bytes is over Redis' limit of {MAX_VALUE_BYTES} (512 MB). Store the body elsewhere and push its address"
            )
        room -= size
        if room < 0:
            return max(1, count)
    return len(run)
