"""The servers of a layout, of which a test kills some: those that have successors once nothing is
lost by it, others to come back as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from busmq_spark.bus.queue.queue import Queue
from busmq_spark.embedded import (
    EmbeddedCluster,
    EmbeddedRedis,
    EmbeddedSentinel,
    EmbeddedStandaloneServers,
)
from tests.conftest import Fresh
from tests.soak.machine import Machine
from tests.support import wait_in_sync, wait_until

Kind = EmbeddedStandaloneServers | EmbeddedSentinel | EmbeddedCluster
SILENCE_MS = {"sentinel": 500, "cluster": 2000}
"""After how long a silent server is replaced once one was killed."""
LONG_SILENCE_MS = 60_000
"""And before: one that a busy machine stops for a second must not be replaced."""


def kill_in_sync(master: EmbeddedRedis) -> EmbeddedRedis:
    """SIGKILL once its replica has everything that anybody was told is stored: what Redis itself
    loses is not ours to find.
    """
    master.command("CLIENT", "PAUSE", 20_000, "WRITE")
    wait_in_sync(master)
    master.kill()
    return master


class Servers:
    """All of a layout, with what they have on their disks."""

    def __init__(self, group: Kind, machine: Machine | None = None) -> None:
        """``machine``: on which they run, if it is one of their own."""
        self._group, self._machine = group, machine
        self._layout = (
            "cluster"
            if isinstance(group, EmbeddedCluster)
            else "sentinel"
            if isinstance(group, EmbeddedSentinel)
            else "direct"
        )

    @property
    def machine(self) -> Machine:
        """Whose clock is theirs."""
        assert self._machine is not None
        return self._machine

    @property
    def place(self) -> dict[str, Any]:
        """As arguments of Bus."""
        return {"url": ",".join(self._group.urls), "layout": self._layout}

    def beside(self, key: str, fresh: Fresh, key_of: Callable[[str], str]) -> str:
        """A name whose key is at the node of a cluster where ``key`` is; any in another layout."""
        if not isinstance(group := self._group, EmbeddedCluster):
            return fresh()
        return next(
            name for name in iter(fresh, "") if group.owner(key_of(name)) is group.owner(key)
        )

    def kill(self, queue: Queue) -> None:
        """The one that has the queue; it comes back at once where it has no successor, and else as
        the replica of that.
        """
        if isinstance(self._group, EmbeddedStandaloneServers):
            server = self._group.servers[queue.server]
            server.kill()
        else:
            server = kill_in_sync(self._master(queue))
            self.set_silence(SILENCE_MS[self._layout])
            wait_until(lambda: self._master(queue) is not server, what="there is a successor")
            self.set_silence(LONG_SILENCE_MS)
        server.restart()

    def stop(self) -> None:
        """SIGKILL for all of them."""
        for server in self._all():
            server.kill()

    def start(self) -> None:
        """All of them again."""
        for server in self._all():
            server.restart()

    def set_silence(self, ms: int) -> None:
        """After how long a silent server is replaced."""
        group = self._group
        if isinstance(group, EmbeddedSentinel):
            for sentinel in group.sentinels:
                sentinel.command("SENTINEL", "SET", group.name, "down-after-milliseconds", ms)
        elif isinstance(group, EmbeddedCluster):
            for node in group.nodes:
                if node.running:
                    node.command("CONFIG", "SET", "cluster-node-timeout", ms)

    def _master(self, queue: Queue) -> EmbeddedRedis:
        assert not isinstance(self._group, EmbeddedStandaloneServers)
        return (
            self._group.master
            if isinstance(self._group, EmbeddedSentinel)
            else self._group.owner(queue.keys.metadata)
        )

    def _all(self) -> list[EmbeddedRedis]:
        if isinstance(self._group, EmbeddedCluster):
            return self._group.nodes
        return [
            *self._group.servers,
            *(self._group.sentinels if isinstance(self._group, EmbeddedSentinel) else []),
        ]


@contextmanager
def own_servers(layout: str, machine: Machine) -> Iterator[Servers]:
    """New ones, on a machine, which keep what they have when they are killed."""
    groups: dict[str, Callable[[], Kind]] = {
        "direct": lambda: EmbeddedStandaloneServers(1, aof=True),
        "three": lambda: EmbeddedStandaloneServers(3, aof=True),
        "sentinel": lambda: EmbeddedSentinel(aof=True),
        "cluster": lambda: EmbeddedCluster(aof=True),
    }
    with ExitStack() as stack:
        with machine.on():
            group = stack.enter_context(groups[layout]())
        made = Servers(group, machine)
        made.set_silence(LONG_SILENCE_MS)
        yield made
