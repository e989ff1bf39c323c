"""Several real servers that start and stop together: alone, with sentinels, or as a cluster.

Several servers that start and stop together; alone, they are the layout ``direct`` with many
URLs.

A master with replicas, watched by sentinels that fail over within about three seconds.

A Redis Cluster of our own, formed without redis-cli (which a server found on PATH may not
bring).
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Self

from busmq_spark.arguments import check_number, check_text, check_whole
from busmq_spark.embedded.server import EmbeddedRedis, quote_for_conf
from busmq_spark.errors import ConfigError, LinkLost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from busmq_spark.embedded.server import Reply


MAX_TIMEOUT_S = 86_400.0
"""Longest time-out of a server that can be asked for."""


class EmbeddedServerSet:
    """The part that all sets of servers share. A subclass fills ``_start_servers``; when that
    fails, everything it started is stopped.
    """

    def __init__(
        self,
        *,
        password: str | None = None,
        aof: bool = False,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._password, self._aof, self._settings = password, aof, dict(settings)
        self._stack: ExitStack | None = None

    def _start_servers(self) -> None:
        """Start the servers with ``_start_data_server`` and return when they are healthy
        together.
        """
        raise NotImplementedError

    def start(self) -> Self:
        if self._stack is not None:
            raise ConfigError(reason="these servers are already started")
        with ExitStack() as stack:
            self._stack = stack
            try:
                self._start_servers()
            except BaseException:
                self._stack = None
                raise
            self._stack = stack.pop_all()
        return self

    def stop(self) -> None:
        """End every server of the set, down or up; nothing in a forked child."""
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start_data_server(
        self,
        *,
        replica_of: tuple[str, int] | None = None,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> EmbeddedRedis:
        """Start another data server; ``more`` are the settings of the set, which those of the
        caller override.
        """
        settings = {**more, **self._settings}
        return self._start_and_own(
            EmbeddedRedis(
                password=self._password, aof=self._aof, replica_of=replica_of, settings=settings
            )
        )

    def _start_and_own(self, server: EmbeddedRedis) -> EmbeddedRedis:
        if self._stack is None:
            raise ConfigError(
                reason=(
                    "these servers are not started. Use it in a with block, or call start() first"
                )
            )
        return self._stack.enter_context(server)


class EmbeddedStandaloneServers(EmbeddedServerSet):
    """``count`` servers that know nothing of each other; ``urls`` is in their order, which clients
    must all share.
    """

    def __init__(
        self,
        count: int,
        *,
        password: str | None = None,
        aof: bool = False,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(password=password, aof=aof, settings=settings)
        self._count = check_whole("count", count, 1)
        self.servers: list[EmbeddedRedis] = []

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def _start_servers(self) -> None:
        self.servers = []  # not [... for ...]: a started server is visible while the rest starts
        for _ in range(self._count):
            self.servers.append(self._start_data_server())


def wait_until(true: Callable[[], bool], timeout_s: float, what: str, url: str) -> None:
    """Poll every 20 ms; a server that is down, paused or refuses counts as "not yet". LinkLost at
    the deadline.
    """
    deadline = time.monotonic() + timeout_s
    last = "its servers answered, but it was not so"
    while True:
        is_late = time.monotonic() > deadline  # before the last look
        try:
            if true():
                return
        except (OSError, RuntimeError) as error:
            last = str(error)
        if is_late:
            raise LinkLost(
                url=url, reason=f"{what} did not come true within {timeout_s:.0f} s ({last})"
            )
        time.sleep(0.02)


def is_replica_in_sync(replica: EmbeddedRedis, master_port: int) -> bool:
    """Whether it follows that master and has caught up with it once."""
    role = replica.command("ROLE", timeout_s=1.0)
    return (
        isinstance(role, list)
        and role[0] == "slave"
        and role[2] == master_port
        and role[3] == "connected"
    )


def is_master(server: EmbeddedRedis) -> bool:
    role = server.command("ROLE", timeout_s=1.0)
    return isinstance(role, list) and role[0] == "master"


HEALTHY_TIMEOUT_S = 60.0


class EmbeddedSentinel(EmbeddedServerSet):
    """``urls`` are those of the sentinels, without a password: ``password`` guards the data
    servers.

    The master changes while the servers run: ``master`` and ``replicas`` ask the sentinels each
    time.
    """

    def __init__(  # noqa: PLR0913  # keywords, each with a default that serves
        self,
        replicas: int = 1,
        sentinels: int = 3,
        name: str = "mymaster",
        *,
        down_after_s: float = 0.5,
        failover_timeout_s: float = 3,
        password: str | None = None,
        aof: bool = False,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(password=password, aof=aof, settings=settings)
        self.name = check_text("name", name)
        check_whole("replicas", replicas)
        check_whole("sentinels", sentinels, 1)
        for duration, value in (
            ("down_after_s", down_after_s),
            ("failover_timeout_s", failover_timeout_s),
        ):
            check_number(duration, value, 0.001, MAX_TIMEOUT_S, "seconds")
        self._replica_count, self._sentinel_count = replicas, sentinels
        self._down_after_s, self._failover_timeout_s = down_after_s, failover_timeout_s
        self.servers: list[EmbeddedRedis] = []
        self.sentinels: list[EmbeddedRedis] = []

    @property
    def urls(self) -> list[str]:
        return [sentinel.url for sentinel in self.sentinels]

    @property
    def master(self) -> EmbeddedRedis:
        """The one the first sentinel that answers names; it may be down already, until the
        sentinels have noticed.
        """
        for sentinel in self.sentinels:
            if sentinel.running:
                port = int(
                    _pairs_to_dict(sentinel.command("SENTINEL", "MASTER", self.name))["port"]
                )
                return next(server for server in self.servers if server.port == port)
        raise LinkLost(url=",".join(self.urls), reason="no sentinel runs")

    @property
    def replicas(self) -> list[EmbeddedRedis]:
        """Every data server but the master, whether it runs or not."""
        master = self.master
        return [server for server in self.servers if server is not master]

    def kill_master(self) -> EmbeddedRedis:
        """SIGKILL; the result is the server that was master. ``wait_healthy()`` then waits for its
        successor.
        """
        master = self.master
        master.kill()
        return master

    def wait_healthy(self, timeout_s: float = HEALTHY_TIMEOUT_S) -> None:
        """Until all running sentinels name the same running master and the running replicas are in
        sync with it.

        False from the moment a master dies, so it may be called right after ``kill_master()``.
        """
        wait_until(
            self._is_healthy,
            timeout_s,
            f"healthy sentinel servers {self.name}",
            ",".join(self.urls),
        )

    def _start_servers(self) -> None:
        self.servers, self.sentinels = [], []
        master = self._start_data_server(more={"repl-diskless-sync-delay": "0"})
        self.servers.append(master)
        for _ in range(self._replica_count):
            self.servers.append(
                self._start_data_server(
                    replica_of=("127.0.0.1", master.port), more={"repl-diskless-sync-delay": "0"}
                )
            )
        # A sentinel asks a new master for its replicas at once, and then only every ten seconds:
        # they must be there before it.
        wait_until(
            lambda: all(is_replica_in_sync(each, master.port) for each in self.servers[1:]),
            HEALTHY_TIMEOUT_S,
            "replicas in sync",
            f"redis://127.0.0.1:{master.port}",
        )
        for _ in range(self._sentinel_count):
            self.sentinels.append(
                self._start_and_own(
                    EmbeddedRedis(sentinel=True, settings=self._monitor_settings(master.port))
                )
            )
        self.wait_healthy()

    def _monitor_settings(self, port: int) -> dict[str, str]:
        login = (
            {}
            if self._password is None
            else {f"sentinel auth-pass {self.name}": quote_for_conf(self._password)}
        )
        return {
            f"sentinel monitor {self.name}": f"127.0.0.1 {port} {self._sentinel_count // 2 + 1}",
            f"sentinel down-after-milliseconds {self.name}": str(round(self._down_after_s * 1000)),
            f"sentinel failover-timeout {self.name}": str(round(self._failover_timeout_s * 1000)),
            **login,
        }

    def _is_healthy(self) -> bool:
        named = set()
        for sentinel in filter(lambda each: each.running, self.sentinels):
            seen = _pairs_to_dict(sentinel.command("SENTINEL", "MASTER", self.name, timeout_s=1.0))
            if seen["flags"] != "master" or int(seen["num-slaves"]) < len(self.servers) - 1:
                return False
            if int(seen["num-other-sentinels"]) != len(self.sentinels) - 1:
                return False
            named.add(int(seen["port"]))
        up = [server for server in self.servers if server.running]
        masters = [server for server in up if {server.port} == named]
        if not masters or not is_master(masters[0]):
            return False
        return all(
            is_replica_in_sync(server, masters[0].port) for server in up if server is not masters[0]
        )


def _pairs_to_dict(reply: Reply) -> dict[str, str]:
    """A flat list of names and values."""
    assert isinstance(reply, list)
    words = [str(word) for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))


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
