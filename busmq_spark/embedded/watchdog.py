"""The parent process of one embedded server. Run as a script, never imported; standard library
only, quick to start.

    argv    owner pid, "new" | "kept", folder, redis-server, its arguments ...
    stdin   one order a line: run | alive | signal N | end SECONDS | kill | quit
    stdout  one answer a line

Theory of operation. The server is a child of this process and of no other, so a signal can never
hit a recycled pid. Whatever ends the owner ends this loop, and the way out kills the server and
removes a folder that was created here:

- End of file on stdin: the owner closed the pipe or died. Not enough alone: a forked child of the
  owner (multiprocessing, Spark's daemon) holds a copy of the pipe and keeps it open.
- So the parent pid is compared too: it changes when the owner dies, even if another process holds
  the pipe. (PR_SET_PDEATHSIG would be wrong for this process: it fires when the *thread* that
  started it ends.)
- Should this process itself be killed, Linux kills the server through PR_SET_PDEATHSIG; that one is
  safe, we have a single thread.
"""

# os.path throughout: pathlib would add half to the time this program needs to start.
# ruff: noqa: PTH103, PTH118

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

OWNER_CHECK_INTERVAL_S = 0.2
PR_SET_PDEATHSIG = 1


class ServerProcess:
    """At most one running redis-server, leader of its own process group (its fork for a dump or AOF
    rewrite is in it).
    """

    def __init__(self, folder: str, argv: list[str]) -> None:
        self.folder, self.argv, self.pid, self.status = folder, argv, 0, 0

    def run(self) -> int:
        """Start it; the log gets everything it prints. The pid is that of the server itself."""
        log = os.open(
            os.path.join(self.folder, "redis.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        prctl, me = _prctl(), os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
                    signal.signal(number, signal.SIG_DFL)
                if prctl is not None:
                    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                    if os.getppid() != me:  # the watchdog died before the request above was made
                        os._exit(1)
                os.chdir(self.folder)
                nothing = os.open(os.devnull, os.O_RDONLY)
                for source, target in ((nothing, 0), (log, 1), (log, 2)):
                    os.dup2(source, target)
                os.execv(self.argv[0], self.argv)  # noqa: S606
            # A second copy of this program must never go on from here
            except BaseException as error:  # noqa: BLE001
                os.write(log, f"cannot run {self.argv[0]}: {error}\n".encode())
            finally:
                os._exit(127)
        os.close(log)
        return self.pid

    def is_alive(self) -> bool:
        if self.pid:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid, self.status = 0, os.waitstatus_to_exitcode(status)
        return self.pid != 0

    def end(self, patience_s: float) -> None:
        """Let it save what it is configured to save; after ``patience_s`` kill it."""
        if self.is_alive():
            os.kill(self.pid, signal.SIGCONT)
            os.kill(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + patience_s
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        self.kill()

    def kill(self) -> None:
        """SIGKILL the server and its forks; returns when the server is gone."""
        if not self.is_alive():
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (
            ProcessLookupError,
            PermissionError,
        ):  # not yet past setsid(); macOS says PermissionError
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        self.pid, self.status = 0, os.waitstatus_to_exitcode(status)


def _prctl() -> Callable[..., object] | None:
    """Linux only; loaded before the fork, because the child should do as little as possible."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        return ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None


def execute_order(server: ServerProcess, order: str) -> str:
    word, *rest = order.split()
    if word == "run":
        return str(server.run())
    if word == "alive":
        return "yes" if server.is_alive() else f"no {server.status}"
    if word == "signal":
        if not server.is_alive():
            return "no"
        os.kill(server.pid, int(rest[0]))
    elif word == "end":
        server.end(float(rest[0]))
    elif word == "kill":
        server.kill()
    return "done"


def serve(owner: int, server: ServerProcess) -> None:
    """Answer orders until the owner says quit, closes the pipe or is no longer our parent."""
    waiting = b""
    while os.getppid() == owner:
        if not select.select([0], [], [], OWNER_CHECK_INTERVAL_S)[0]:
            continue
        received = os.read(0, 4096)
        if not received:
            return
        *orders, waiting = (waiting + received).split(b"\n")
        for order in orders:
            if order == b"quit":
                return
            os.write(1, execute_order(server, order.decode()).encode() + b"\n")


def exit_on_signal(*_: object) -> None:
    sys.exit(0)


def main(owner: str, kind: str, folder: str, *argv: str) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, exit_on_signal)
    # Both are inherited: an owner that ignores or blocks them would cost us the status of our
    # child, and the server its SIGTERM.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    server = ServerProcess(folder, list(argv))
    try:
        os.makedirs(folder, mode=0o700, exist_ok=kind == "kept")
    except OSError as error:
        os.write(1, f"refused cannot be created: {error}\n".encode())
        return
    try:
        # Two servers that append to one file destroy it. The lock goes with this process; the
        # server does not inherit it.
        try:
            lock = os.open(os.path.join(folder, "busmq.lock"), os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.write(1, b"refused is in use by another embedded server\n")
            return
        except OSError as error:
            os.write(1, f"refused cannot be used: {error}\n".encode())
            return
        os.write(1, b"ready\n")
        serve(int(owner), server)
    except BrokenPipeError:  # the owner died while it waited for an answer
        pass
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        server.kill()
        if kind == "new":
            import shutil  # slow to import, and needed only here

            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
