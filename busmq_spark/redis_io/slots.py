"""Redis Cluster's hash slots: key to slot to node. Pure: used by the links."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.crc import key_slot

from busmq_spark.queue.command_generators import RedisCall

NodeAddress = tuple[str, int]
"""Host and port."""


def slot_of_key(key: bytes | str) -> int:
    """The slot of a key: that of its first non-empty ``{tag}``, if it has one."""
    return key_slot(key.encode() if isinstance(key, str) else key)


def key_of(call: RedisCall) -> bytes | str | None:
    """The key that decides where a call goes; return None for commands that any node answers
    (PUBSUB, SCRIPT …).

    Any node takes a PUBLISH too, but only messages through one node are received in order: the
    channel counts as its key.
    """
    if call.script is not None:
        key = call.words[0] if call.key_count else None
    else:
        key = (
            call.words[1]
            if len(call.words) > 1 and str(call.words[0]).upper() not in _KEYLESS_COMMANDS
            else None
        )
    return str(key) if isinstance(key, int) else key


_KEYLESS_COMMANDS = frozenset(
    {
        "PUBSUB",
        "SCRIPT",
        "PING",
        "CLUSTER",
        "CONFIG",
        "INFO",
        "SCAN",
        "ROLE",
        "CLIENT",
        "TIME",
        "DBSIZE",
        "WAIT",
    }
)


@dataclass(frozen=True, slots=True)
class SlotMap:
    """Which master owns which slots, as one node saw it."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    nodes: tuple[NodeAddress, ...]

    @classmethod
    def parse(cls, reply: Sequence[Any], asked: str) -> SlotMap:
        """From the reply of CLUSTER SLOTS; a node that does not know its own host is where it was
        ``asked``.
        """
        ranges = sorted(
            (int(r[0]), int(r[1]), ((r[2][0] or b"").decode() or asked, int(r[2][1])))
            for r in reply
        )
        return cls(
            tuple(r[0] for r in ranges), tuple(r[1] for r in ranges), tuple(r[2] for r in ranges)
        )

    def owner(self, slot: int) -> NodeAddress | None:
        """The master of a slot; return None when no node serves it."""
        place = bisect_right(self.starts, slot) - 1
        return self.nodes[place] if place >= 0 and slot <= self.ends[place] else None

    def with_owner(self, slot: int, node: NodeAddress) -> SlotMap:
        """The map with one slot at another node."""
        place = bisect_right(self.starts, slot) - 1
        rows = list(zip(self.starts, self.ends, self.nodes, strict=True))
        first, last, before = (
            rows.pop(place) if place >= 0 and slot <= self.ends[place] else (slot, slot, node)
        )
        cut = ((first, slot - 1, before), (slot, slot, node), (slot + 1, last, before))
        rows = sorted([*rows, *(row for row in cut if row[0] <= row[1])])
        return SlotMap(
            tuple(row[0] for row in rows),
            tuple(row[1] for row in rows),
            tuple(row[2] for row in rows),
        )

    def with_moved(self, moved: Mapping[int, NodeAddress]) -> SlotMap:
        """The map with what redirections say."""
        found = self
        for slot, node in moved.items():
            if found.owner(slot) != node:
                found = found.with_owner(slot, node)
        return found

    @property
    def masters(self) -> tuple[NodeAddress, ...]:
        """Every node that owns slots, each once."""
        return tuple(dict.fromkeys(self.nodes))


@dataclass(frozen=True, slots=True)
class Redirect:
    """``asking``: this one call goes there, with ASKING before it; else the slot has moved for
    good.
    """

    node: NodeAddress
    asking: bool


def parse_redirect(text: str, asked: str) -> Redirect | None:
    """Parse a MOVED or ASK error; return None for any other text. An empty host means the node that
    was ``asked``.
    """
    kind, _, rest = text.partition(" ")
    if kind not in ("MOVED", "ASK"):
        return None
    host, _, port = rest.split(" ")[1].rpartition(":")
    return Redirect((host or asked, int(port)), kind == "ASK")
