"""The busmq command as users run it: a process of its own against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.cli import forked

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "busmq_spark"]


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def records(self) -> list[dict[str, Any]]:
        """Stdout as JSON lines; fails when anything else is there."""
        return [json.loads(line) for line in self.text.splitlines()]

    @property
    def error(self) -> dict[str, Any]:
        """The error object on stderr."""
        [found] = [
            json.loads(line)["error"]
            for line in self.err.splitlines()
            if "error" in json.loads(line)
        ]
        return dict(found)


class Busmq(Protocol):
    """Runs one command line to its end."""

    def __call__(self, *arguments: str, stdin: bytes = b"", url: str | None = ...) -> Done: ...


def environment(url: str | None) -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if name != "BUSMQ_REDIS_URL"}
    found["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    return found | ({"BUSMQ_REDIS_URL": url} if url else {})


class Start(Protocol):
    """Starts one command line with all three streams as pipes; ended and closed with the test."""

    def __call__(self, *arguments: str, url: str | None = ...) -> subprocess.Popen[bytes]: ...


@pytest.fixture
def start(redis_url: str) -> Iterator[Start]:
    with ExitStack() as stack:

        def run(*arguments: str, url: str | None = redis_url) -> subprocess.Popen[bytes]:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            process = subprocess.Popen(
                [*COMMAND, *arguments], env=environment(url), start_new_session=True, **pipes
            )
            stack.enter_context(process)
            stack.callback(process.kill)  # before the exit of Popen, which waits for its end
            return process

        yield run


def line_of(process: subprocess.Popen[bytes]) -> bytes:
    """Its next line on stdout."""
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.fixture
def busmq(redis_url: str) -> Busmq:
    def run(*arguments: str, stdin: bytes = b"", url: str | None = redis_url) -> Done:
        code, out, err = forked.run([*arguments], stdin, environment(url))
        assert b"Traceback" not in err, err.decode()
        return Done(code, out, err.decode())

    return run
