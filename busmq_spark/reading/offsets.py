"""The offset in the checkpoint: per queue its incarnation, the last id read, and a fingerprint of
that message. The ack follows when Spark has logged the batch. Versioned JSON.

    {"v": 1, "queues": {"orders": {"born": "5f…", "last": 41, "mark": "9a…"}}}

A query that reads links, too, has their queues beside these, link by link; a link is here once it
has listed its queues.

    {"v": 1, "queues": {…}, "sources": {"eu": {"queues": {"orders": {"born": "77…", "last": 8,
    "mark": "b0…"}}}}}

``{"v": 1}`` is where every query begins: nothing is planned yet, so startingOffsets counts. A query
that found no queue so far has ``"queues": {}``. ``"idle": 1`` beside the queues makes an offset
differ from the one before though nothing is new: such a batch has no rows, and Spark commits the
batch before it. ``from`` stands where a queue enters the query, or goes on after a loss: the batch
that ends at this offset begins after that id, whatever the batch before said. ``lost`` counts the
ids skipped with failOnDataLoss=false. Keys are sorted, so the text of an offset is stable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from busmq_spark.errors import ConfigError
from busmq_spark.queue.keys import qualified_name, split_name
from busmq_spark.queue.message import Position

OFFSET_VERSION = 1
INITIAL_OFFSET = {"v": OFFSET_VERSION}


Positions = Mapping[str, Position]


def encode(positions: Positions, links: Collection[str] = ()) -> dict[str, Any]:
    """The offset as Spark's checkpoint stores it. ``links`` are those that are known besides the
    ones in ``positions``.
    """
    return nest_by_source({queue: positions[queue].to_json() for queue in positions}, links)


def nest_by_source(queues: Mapping[str, Any], links: Collection[str] = ()) -> dict[str, Any]:
    """Something about every queue in the shape of an offset, sorted."""
    by_source: dict[str, dict[str, Any]] = {"": {}, **{link: {} for link in links}}
    for name in sorted(queues):
        source, queue = split_name(name)
        by_source.setdefault(source, {})[queue] = queues[name]
    own = by_source.pop("")
    sources = {source: {"queues": by_source[source]} for source in sorted(by_source)}
    return {"v": OFFSET_VERSION, "queues": own, **({"sources": sources} if sources else {})}


def have_same_positions(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two offsets stand at the same positions."""
    return all(one.get(part) == other.get(part) for part in ("v", "queues", "sources"))


def links_of(offset: Mapping[str, Any]) -> frozenset[str]:
    """The links in an offset."""
    return frozenset(offset.get("sources", ()))


def sources_of(offset: Mapping[str, Any]) -> frozenset[str]:
    """The sources that an offset knows, Redis itself ('') among them: none yet at the beginning of
    a query.
    """
    return frozenset() if offset == INITIAL_OFFSET else links_of(offset) | {""}


def decode(offset: Mapping[str, Any]) -> dict[str, Position]:
    """The positions in an offset. Raises ConfigError when it is not one of ours, or of a later
    version.
    """
    try:
        if offset["v"] != OFFSET_VERSION:
            raise ConfigError(
                reason=(
                    f"the checkpoint holds offsets of version {offset['v']}, this package reads"
                    f" version {OFFSET_VERSION}; update it"
                )
            )
        if offset == INITIAL_OFFSET:
            return {}
        named = {str(queue): p for queue, p in offset["queues"].items()}
        for source, found in offset.get("sources", {}).items():
            named.update((qualified_name(source, queue), p) for queue, p in found["queues"].items())
        return {name: position_of(p) for name, p in named.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            reason=(
                f"the checkpoint does not hold busmq offsets ({error!r} in {str(offset)[:200]});"
                " use a new checkpoint"
            )
        ) from None


def position_of(p: Mapping[str, Any]) -> Position:
    ids = [p["last"], p.get("lost", 0), *([] if p.get("from") is None else [p["from"]])]
    if (
        any(type(id) is not int or not 0 <= id < 2**53 for id in ids)
        or not isinstance(p["born"], str)
        or not isinstance(p["mark"], str)
    ):
        raise ValueError(f"no position: {str(p)[:100]}")
    return Position(p["born"], p["last"], p["mark"], p.get("from"), p.get("lost", 0))


class OffsetCodec:
    """Encodes and decodes, with a cache of the last offsets: Spark passes each of them back three
    times, and comparing is cheap.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[dict[str, Any], dict[str, Position]]] = []

    def canonical(self, offset: dict[str, Any]) -> dict[str, Any]:
        """The offset as it was seen before, if it was: it is compared several times with others,
        and with the same object that costs nothing.
        """
        return next((seen for seen, _ in self._seen if seen == offset), offset)

    def encode(self, positions: dict[str, Position], links: Collection[str] = ()) -> dict[str, Any]:
        """Encode positions, like the function."""
        offset = encode(positions, links)
        self._remember(offset, positions)
        return offset

    def decode(self, offset: dict[str, Any]) -> Mapping[str, Position]:
        """Decode an offset, like the function."""
        for seen, positions in self._seen:
            if seen == offset:
                return positions
        positions = decode(offset)
        self._remember(offset, positions)
        return positions

    def _remember(self, offset: dict[str, Any], positions: dict[str, Position]) -> None:
        self._seen = [(offset, positions), *self._seen[:1]]  # start and end of a batch


def last_id_before_batch(start: Position | None, end: Position) -> int:
    """The last id that was done before the batch from ``start`` to ``end``; the batch reads the ids
    after it.
    """
    if start is None or start.born != end.born:
        if end.start is None:
            raise ConfigError(
                reason="the checkpoint ends at a queue life it never began; use a new checkpoint"
            )
        return end.start
    if end.start is not None and (end.lost > start.lost or end.last < start.last):
        return end.start  # after a loss the batch goes back or forth to what is stored
    # Also where end.start says something else: Spark before 4.2 plans a restart without knowing the
    # start, as if all were new
    return start.last
