"""Positions in a queue: the last id that a reader has read, and the range to read next. Ids are
inclusive.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Position(NamedTuple):
    """Everything up to and including the id ``last`` was read, in the life of the queue named
    ``born``.
    """

    born: str
    last: int
    mark: str = ""
    start: int | None = None
    lost: int = 0

    def to_json(self) -> dict[str, Any]:
        """The JSON object of one queue."""
        found: dict[str, Any] = {"born": self.born, "last": self.last, "mark": self.mark}
        if self.start is not None:
            found["from"] = self.start
        if self.lost:
            found["lost"] = self.lost
        return found


class Range(NamedTuple):
    """Ids first..last (inclusive) of one life of one queue, on the server with this index."""

    queue: str
    born: str
    first: int
    last: int
    server: int = 0

    @property
    def rows(self) -> int:
        """Return the number of ids."""
        return self.last - self.first + 1
