"""A buffer for a slow listener: bounded in messages and bytes; the oldest messages are dropped."""

from __future__ import annotations

from collections import deque


class DropOldestBuffer:
    """First in, first out. A value over the byte bound still fits when it is alone."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.dropped = 0
        """Values that gave way to newer ones."""
        self._most, self._most_bytes = most, most_bytes
        self._values: deque[bytes] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def put(self, value: bytes) -> int:
        """Add a value; the result is how many older ones it pushed out."""
        self._values.append(value)
        self._bytes += len(value)
        out = 0
        while len(self._values) > 1 and (
            len(self._values) > self._most or self._bytes > self._most_bytes
        ):
            self.take()
            out += 1
        self.dropped += out
        return out

    def take(self) -> bytes:
        """The oldest value. Raises IndexError when there is none."""
        value = self._values.popleft()
        self._bytes -= len(value)
        return value

    def clear(self) -> None:
        """Forget what waits; it does not count as dropped."""
        self._values.clear()
        self._bytes = 0
