"""A master with replicas, watched by sentinels that fail over within about three seconds."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from busmq_spark.arguments import check_number, check_text, check_whole
from busmq_spark.embedded.server import EmbeddedRedis, quote_for_conf
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

    from busmq_spark.embedded.resp_client import Reply

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
