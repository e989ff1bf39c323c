"""The owner's end of ``watchdog.py``: starts it, gives it orders, ends it."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from importlib.resources import as_file, files
from pathlib import Path

from busmq_spark.errors import ConfigError, LinkLost, ToolMissing


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
