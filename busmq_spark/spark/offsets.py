"""The offset in the checkpoint: per queue its incarnation, the last acked id, and a fingerprint of that message. Versioned JSON.

    {"v": 1, "queues": {"orders": {"born": "5f…", "last": 41, "mark": "9a…"}}}

``{"v": 1}`` is where every query begins: nothing is planned yet, so startingOffsets counts. A query that found no queue so far has ``"queues": {}``.
``from`` stands where a queue enters the query, or goes on after a loss: the batch that ends at this offset begins after that id, whatever the
batch before said. ``lost`` counts the ids skipped with failOnDataLoss=false. Keys are sorted, so the text of an offset is stable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from busmq_spark.errors import ConfigError
from busmq_spark.store.position import Position

VERSION = 1
INITIAL = {"v": VERSION}


Positions = Mapping[str, Position]


def encode(positions: Positions) -> dict[str, Any]:
    """The offset as Spark's checkpoint stores it."""
    return {"v": VERSION, "queues": {queue: positions[queue].to_json() for queue in sorted(positions)}}


def decode(offset: Mapping[str, Any]) -> dict[str, Position]:
    """The positions in an offset. Raises ConfigError when it is not one of ours, or of a later version."""
    try:
        if offset["v"] != VERSION:
            raise ConfigError(reason=f"the checkpoint holds offsets of version {offset['v']}, this package reads version {VERSION}; update it")
        return {
            str(queue): Position(str(p["born"]), int(p["last"]), str(p["mark"]), p.get("from"), p.get("lost", 0))
            for queue, p in ({} if offset == INITIAL else offset["queues"]).items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(reason=f"the checkpoint does not hold busmq offsets ({error!r} in {str(offset)[:200]}); use a new checkpoint") from None


class Memory:
    """Encodes and decodes, and knows the last offsets it has seen again: Spark hands each of them back three times, and comparing is cheap."""

    def __init__(self) -> None:
        self._seen: list[tuple[Mapping[str, Any], dict[str, Position]]] = []

    def encode(self, positions: dict[str, Position]) -> dict[str, Any]:
        """As the function."""
        offset = encode(positions)
        self._keep(offset, positions)
        return offset

    def decode(self, offset: Mapping[str, Any]) -> Mapping[str, Position]:
        """As the function."""
        for seen, positions in self._seen:
            if seen == offset:
                return positions
        positions = decode(offset)
        self._keep(offset, positions)
        return positions

    def _keep(self, offset: Mapping[str, Any], positions: dict[str, Position]) -> None:
        self._seen = [(offset, positions), *self._seen[:1]]  # start and end of a batch


def begin(start: Position | None, end: Position) -> int:
    """The last id that was done before the batch from ``start`` to ``end``; the batch reads the ids after it."""
    if start is None or start.born != end.born:
        if end.start is None:
            raise ConfigError(reason="the checkpoint ends at a queue life it never began; use a new checkpoint")
        return end.start
    if end.start is not None and (end.lost > start.lost or end.last < start.last):
        return end.start  # after a loss the batch goes back or forth to what is stored
    return start.last  # also where end.start says something else: Spark before 4.2 plans a restart without knowing the start, as if all were new
