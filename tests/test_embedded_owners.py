"""Embedded servers end with the process that started them, however it ends, and only with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from busmq_spark.embedded import EmbeddedRedis
from tests.support import PATIENCE_S, gone, ps, wait_until

pytestmark = pytest.mark.redis

ROOT = Path(__file__).parents[1]


class Owner:
    """A Python process of its own that starts a server as ``redis`` and then runs the given
    lines.
    """

    def __init__(self, lines: str = "", before: str = "") -> None:
        code = (
            "import os, sys, signal, time, threading\nfrom busmq_spark.embedded import"
            f" EmbeddedRedis\n{before}\nredis = EmbeddedRedis().start()\n"
        )
        code += "print(redis.pid, redis._guard._process.pid, redis.folder, flush=True)\n" + lines
        argv = [sys.executable, "-c", code]
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        pid, watchdog, folder = self.says().split()
        self.pid, self.watchdog, self.folder = int(pid), int(watchdog), Path(folder)

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait()

    def left_nothing(self) -> None:
        wait_until(lambda: gone(self.pid), what=f"redis-server {self.pid} is gone")
        wait_until(lambda: gone(self.watchdog), what=f"watchdog {self.watchdog} is gone")
        wait_until(lambda: not self.folder.exists(), what=f"{self.folder} is gone")

    def __enter__(self) -> Owner:
        return self

    def __exit__(self, *_: object) -> None:
        # All of its session: a forked child would keep stdout open. And what a red test shows to
        # have been left behind.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        for pid, name in ((self.watchdog, "watchdog.py"), (self.pid, "redis-server")):
            if name in ps("args", pid):
                os.kill(pid, signal.SIGKILL)


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
    with Owner("sys.stdin.readline(); redis.stop()") as owner:
        os.kill(owner.watchdog, signal.SIGKILL)
        wait_until(lambda: gone(owner.pid), what="redis-server is gone")
        owner.process.communicate("stop\n")
        owner.left_nothing()


def test_a_parent_that_forgets_to_stop_leaves_nothing() -> None:
    with Owner() as owner:
        owner.process.wait(PATIENCE_S)
        owner.left_nothing()


def test_stop_works_while_a_forked_child_holds_the_pipes_open() -> None:
    with Owner(
        "child = os.fork()\nif not child: signal.pause()\nredis.stop(); print('stopped',"
        " flush=True); os.kill(child, 9)"
    ) as owner:
        assert owner.says() == "stopped"
        owner.left_nothing()


def test_a_forked_child_can_use_the_server_but_not_end_it() -> None:
    child = (
        "try: redis.kill()\n    except Exception as error: print(type(error).__name__,"
        " redis.command('PING'), flush=True)"
    )
    lines = (
        "child = os.fork()\nif not child:\n    redis.stop()\n    redis._guard.close()\n   "
        f" {child}\n    os._exit(0)\n"
    )
    with Owner(
        lines + "os.waitpid(child, 0); print(redis.command('PING'), redis.running, flush=True)"
    ) as owner:
        assert owner.says() == "ConfigError PONG"
        assert owner.says() == "PONG True"


def test_the_end_of_the_thread_that_started_it_does_not_end_the_server() -> None:
    redis = EmbeddedRedis()
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
    with Owner(
        "try:\n    print('waiting', flush=True); signal.pause()\nexcept KeyboardInterrupt:\n   "
        f" {after}"
    ) as owner:
        assert owner.says() == "waiting"
        os.killpg(owner.process.pid, signal.SIGINT)
        assert owner.says() == "PONG True"
        owner.process.wait(PATIENCE_S)
        owner.left_nothing()


def test_an_owner_that_ignores_or_blocks_signals_can_still_stop_its_server(tmp_path: Path) -> None:
    before = (
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN); signal.pthread_sigmask(signal.SIG_BLOCK,"
        " [signal.SIGTERM])"
    )
    kept = (
        f"with EmbeddedRedis({str(tmp_path)!r}, aof=True) as other: other.kill(); other.restart()\n"
    )
    log = (
        f"print('User requested shutdown' in open({str(tmp_path / 'redis.log')!r}).read(),"
        " flush=True)\n"
    )
    with Owner(kept + log + "redis.stop()", before) as owner:
        assert owner.says() == "True"
        owner.process.wait(PATIENCE_S)
        owner.left_nothing()
