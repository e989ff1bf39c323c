"""A Redis Cluster of our own, formed without redis-cli (which a server found on PATH may not
bring).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from busmq_spark.arguments import check_number, check_whole
from busmq_spark.embedded.server_set import (
    MAX_TIMEOUT_S,
    EmbeddedServerSet,
    is_master,
    is_replica_in_sync,
    wait_until,
)
from busmq_spark.errors import LinkLost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from busmq_spark.embedded.server import EmbeddedRedis

SLOTS = 16_384
CLUSTER_FORMED_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 10.0
"""For a query that is sent once; a repeated one need not wait so long for an unreachable node."""


class EmbeddedCluster(EmbeddedServerSet):
    """``masters`` × (1 + ``replicas``) nodes; the slots are spread evenly over the first
    ``masters`` of ``nodes``.

    A fail-over takes about ``node_timeout_s`` plus two seconds.
    """

    def __init__(
        self,
        masters: int = 3,
        replicas: int = 1,
        *,
        node_timeout_s: float = 2,
        password: str | None = None,
        aof: bool = False,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(password=password, aof=aof, settings=settings)
        check_whole("masters", masters, 1)
        check_whole("replicas", replicas)
        check_number("node_timeout_s", node_timeout_s, 0.001, MAX_TIMEOUT_S, "seconds")
        self._master_count, self._replica_count, self._node_timeout_s = (
            masters,
            replicas,
            node_timeout_s,
        )
        self.nodes: list[EmbeddedRedis] = []

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    @property
    def masters(self) -> list[EmbeddedRedis]:
        """The running nodes that own slots now, in the order of ``nodes``."""
        owners = set(self._owners(self._any_running_node(), COMMAND_TIMEOUT_S).values())
        return [node for node in self.nodes if node.port in owners and node.running]

    @property
    def replicas(self) -> list[EmbeddedRedis]:
        """The running nodes that own no slots now."""
        masters = self.masters
        return [node for node in self.nodes if node not in masters and node.running]

    def owner(self, key: str) -> EmbeddedRedis:
        """The node that owns the key's slot, as the cluster sees it; it may be down until the
        others have noticed.

        A node that has heard that a master became a replica, and not yet who has its slots, knows
        no owner: this waits until it does.
        """
        found: list[EmbeddedRedis] = []

        def is_known() -> bool:
            asked = self._any_running_node()
            slot = asked.command("CLUSTER", "KEYSLOT", key)
            assert isinstance(slot, int)
            ports = [
                port
                for (first, last), port in self._owners(asked, COMMAND_TIMEOUT_S).items()
                if first <= slot <= last
            ]
            found.extend(node for node in self.nodes if node.port in ports)
            return bool(found)

        wait_until(
            is_known,
            CLUSTER_FORMED_TIMEOUT_S,
            f"an owner of the slot of key {key!r}",
            self._any_running_node().url,
        )
        return found[0]

    def kill_master(self, key: str = "") -> EmbeddedRedis:
        """SIGKILL the owner of this key; the result is that node. ``wait_healthy()`` then waits for
        its successor.
        """
        node = self.owner(key)
        node.kill()
        return node

    def wait_healthy(self, timeout_s: float = CLUSTER_FORMED_TIMEOUT_S) -> None:
        """Until all running nodes agree that every slot has a running master, and the running
        replicas are in sync with theirs.

        False from the moment a master dies, so it may be called right after ``kill_master()``.
        """
        wait_until(
            self._is_healthy,
            timeout_s,
            "a healthy cluster",
            ",".join(f"redis://127.0.0.1:{node.port}" for node in self.nodes),
        )

    def _start_servers(self) -> None:
        self.nodes = []
        for _ in range(self._master_count * (1 + self._replica_count)):
            self.nodes.append(self._start_data_server(more=self._cluster_settings()))
        masters, replicas = self.nodes[: self._master_count], self.nodes[self._master_count :]
        for index, master in enumerate(masters):
            first, last = SLOTS * index // len(masters), SLOTS * (index + 1) // len(masters)
            master.command("CLUSTER", "ADDSLOTS", *range(first, last))
            master.command(
                "CLUSTER", "SET-CONFIG-EPOCH", index + 1
            )  # else equal epochs are sorted out one by one, slowly
        for node in self.nodes[1:]:
            self.nodes[0].command("CLUSTER", "MEET", "127.0.0.1", node.port)
        wait_until(
            self._all_met,
            CLUSTER_FORMED_TIMEOUT_S,
            "a cluster whose nodes have all met",
            self.nodes[0].url,
        )
        ids = [str(master.command("CLUSTER", "MYID")) for master in masters]
        for index, replica in enumerate(replicas):
            replica.command("CLUSTER", "REPLICATE", ids[index % len(ids)])
        self.wait_healthy()

    def _cluster_settings(self) -> dict[str, str]:
        return {
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(round(self._node_timeout_s * 1000)),
            # With so short a timeout a busy machine would rule every replica out
            "cluster-replica-validity-factor": "0",
            "repl-diskless-sync-delay": "0",
        }

    def _any_running_node(self) -> EmbeddedRedis:
        """A running node; after a fail-over the first of them is as good as any once
        ``wait_healthy()`` has returned.
        """
        for node in self.nodes:
            if node.running:
                return node
        raise LinkLost(
            url=",".join(f"redis://127.0.0.1:{node.port}" for node in self.nodes),
            reason="no node runs",
        )

    def _all_met(self) -> bool:
        for node in self.nodes:
            known = str(node.command("CLUSTER", "NODES", timeout_s=1.0)).splitlines()
            if len(known) != len(self.nodes) or any("handshake" in line for line in known):
                return False
        return True

    def _owners(
        self, node: EmbeddedRedis, timeout_s: float = 1.0, *, replicas: int = 0
    ) -> dict[tuple[int, int], int]:
        """first..last slot -> port of the master, as this node sees it; only ranges with that many
        replicas.
        """
        ranges = node.command("CLUSTER", "SLOTS", timeout_s=timeout_s)
        found: dict[tuple[int, int], int] = {}
        for each in ranges if isinstance(ranges, list) else []:
            assert isinstance(each, list)
            first, last, master, *others = each
            assert isinstance(first, int)
            assert isinstance(last, int)
            assert isinstance(master, list)
            assert isinstance(master[1], int)
            if len(others) >= replicas:
                found[first, last] = master[1]
        return found

    def _is_healthy(self) -> bool:
        up = {node.port: node for node in self.nodes if node.running}
        whole = len(up) == len(
            self.nodes
        )  # a cluster that lost nodes is healthy with fewer replicas
        views = []
        for node in up.values():
            if "cluster_state:ok" not in str(node.command("CLUSTER", "INFO", timeout_s=1.0)):
                return False
            views.append(self._owners(node, replicas=self._replica_count if whole else 0))
        owners = views[0] if views else {}
        if (
            any(view != owners for view in views)
            or sum(last - first + 1 for first, last in owners) != SLOTS
        ):
            return False
        masters = set(owners.values())
        if not masters <= up.keys() or not all(is_master(up[port]) for port in masters):
            return False
        return all(
            any(is_replica_in_sync(node, port) for port in masters)
            for node in up.values()
            if node.port not in masters
        )
