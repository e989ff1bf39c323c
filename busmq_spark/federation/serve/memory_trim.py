"""Giving freed memory back to the system."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

DISCONNECTS_BEFORE_TRIM = 50
"""Peers that have disconnected from which on memory is given back."""
BYTES_BEFORE_TRIM = 64 * 1024 * 1024
"""Bytes sent by peers that have disconnected, from which on it is, too: decoded, they may be
several times as many.
"""

LARGE_BLOCK_BYTES = 1024 * 1024
_M_MMAP_THRESHOLD = -3


def trim_memory() -> None:
    """Objects of a closed connection are in reference cycles, and glibc keeps freed memory between
    blocks in use (fragmentation).

    After hundreds that did not read, these are hundreds of megabytes. Without glibc, it collects
    the cycles only.
    """
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def map_large_blocks() -> None:
    """Let glibc give large blocks back to the system as soon as they are freed.

    By itself it keeps blocks of up to 32 MiB after the first was freed, between those in use.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


class MemoryTrimTrigger:
    """Detects the moment when many peers have disconnected and no more are disconnecting, or when
    those that have gone had sent much.
    """

    def __init__(self) -> None:
        self._most = self._last = 0
        self._gone_bytes = self._trimmed_bytes = 0

    def is_due(self, now: int, gone_bytes: int) -> bool:
        """Called at intervals with the number of connections ``now``, and what all that are closed
        had received.
        """
        calm, self._last = now == self._last, now
        self._most = max(self._most, now)
        settled, self._gone_bytes = (
            self._gone_bytes,
            gone_bytes,
        )  # those of the last interval may still be closing
        if settled - self._trimmed_bytes < BYTES_BEFORE_TRIM and (
            not calm or self._most - now < DISCONNECTS_BEFORE_TRIM
        ):
            return False
        self._most, self._trimmed_bytes = now, settled
        return True
