"""The process of ``program.py``: told what to do, listened to, and killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]


class Program:
    """One run of it, of messages from ``first`` on."""

    def __init__(
        self, path: Path, to: str, queue: str, first: int = 1, more: Mapping[str, str] | None = None
    ) -> None:
        words = [sys.executable, "-m", "tests.outbox.program", str(path), to, queue, str(first)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **(more or {})}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            words,
            cwd=ROOT,
            env=environment,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.lines: list[str] = []
        self._ears = threading.Thread(target=self._listen, daemon=True)
        self._ears.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def kept(self) -> int:
        """The last message that a call has returned for; 0: none."""
        return max(
            (int(line.split()[2]) for line in tuple(self.lines) if line.startswith("kept")),
            default=0,
        )

    def wait(self, word: str, times: int = 1) -> None:
        """Until it has said so."""
        wait_until(
            lambda: (
                sum(line.startswith(word) for line in tuple(self.lines)) >= times
                or self._process.poll() is not None
            )
        )
        assert sum(line.startswith(word) for line in self.lines) >= times, self.lines[-5:]

    def tell(self, *words: object) -> None:
        """Give an order, and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def do(self, *words: object) -> None:
        """Give an order, and wait until it is done."""
        done = sum(line == "done" for line in self.lines)
        self.tell(*words)
        self.wait("done", done + 1)

    def kill(self) -> None:
        """With SIGKILL; what it had said is there then."""
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._ears.join(PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # the last one of a process that was killed may be cut off
                self.lines.append(line[:-1])


def numbers(values: list[bytes]) -> list[int]:
    """Of messages of the program."""
    return [int(value.split(b" ")[0]) for value in values]
