"""Several servers that start and stop together; alone, they are the layout ``direct`` with many
URLs.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Self

from busmq_spark.arguments import check_whole
from busmq_spark.embedded.server import EmbeddedRedis
from busmq_spark.errors import ConfigError, LinkLost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
