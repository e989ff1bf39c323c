"""Slots of a cluster on the move, step by step, as ``redis-cli --cluster reshard`` does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from busmq_spark.embedded import EmbeddedCluster, EmbeddedRedis
from tests.support import wait_until


@dataclass
class Move:
    """The slot of ``key`` on its way from its owner to another master. Call ``begin``, ``migrate``
    as often as you like, ``end``.
    """

    group: EmbeddedCluster
    key: str

    def __post_init__(self) -> None:
        self.source = self.group.owner(self.key)
        self.target = next(node for node in self.group.masters if node is not self.source)
        self.slot = self.source.command("CLUSTER", "KEYSLOT", self.key)

    def begin(self) -> None:
        self._set(self.target, "IMPORTING", _id(self.source))
        self._set(self.source, "MIGRATING", _id(self.target))

    def migrate(self, *keys: str) -> None:
        """Move these keys, or all there are."""
        assert isinstance(self.slot, int)
        found = list(keys) or [
            str(key) for key in self.source.command("CLUSTER", "GETKEYSINSLOT", self.slot, 1000)
        ]  # type: ignore[union-attr]
        if found:
            assert self.source.command(
                "MIGRATE", "127.0.0.1", self.target.port, "", 0, 5000, "KEYS", *found
            ) in ("OK", "NOKEY")

    def end(self) -> None:
        for node in (self.target, self.source, *self.group.masters):
            self._set(node, "NODE", _id(self.target))
        # A message of the old owner under way may still change a node's slot map, until the node
        # receives the new owner's later epoch.
        wait_until(
            lambda: all(self._arrived(node) for node in self.group.nodes if node.running),
            what="every node knows where the slot is",
        )

    def whole(self) -> None:
        self.begin()
        self.migrate()
        self.end()

    def _arrived(self, node: EmbeddedRedis) -> bool:
        """Whether this node names the target as the owner."""
        ranges: Any = node.command("CLUSTER", "SLOTS")
        return any(
            first <= self.slot <= last and master[1] == self.target.port
            for first, last, master, *_ in ranges
        )

    def _set(self, node: EmbeddedRedis, *words: str) -> None:
        assert isinstance(self.slot, int)
        assert node.command("CLUSTER", "SETSLOT", self.slot, *words) == "OK"


def _id(node: EmbeddedRedis) -> str:
    return str(node.command("CLUSTER", "MYID"))
