"""What several test files need."""

from __future__ import annotations

import ast
import os
import re
import secrets
import subprocess
import threading
import time
from functools import cache
from typing import TYPE_CHECKING, Any

from busmq_spark.embedded import server
from busmq_spark.embedded.server import send_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from busmq_spark.embedded import EmbeddedRedis

FACTOR = int(os.environ.get("BUSMQ_SOAK_FACTOR", "1"))
"""How many times as long a campaign is as in ``make test``; ``make soak`` says it."""
PATIENCE_S = 240.0
"""How long a test waits for what takes a moment on a quiet machine: only a red test ever waits so
long. It ends before the time limit of a test, and says what it waited for.
"""


@cache
def parsed(text: str) -> ast.Module:
    """The tree of a file's text, which several tests look at: the whole package takes 2 s."""
    return ast.parse(text)


def wait_until(
    predicate: Callable[[], object], timeout_s: float = PATIENCE_S, what: str = ""
) -> None:
    """Return as soon as ``predicate()`` is true; AssertionError that says what was waited for at
    the deadline.

    It polls every 10 ms and is asked once more at the deadline. An error of the predicate is not
    swallowed: a test that expects refusals on the way catches them itself.
    """
    pause = threading.Event()
    deadline = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(
                f"{what or getattr(predicate, '__name__', predicate)}: not so within {timeout_s} s"
            )
        pause.wait(0.01)


class Life:
    """A life of ``ttl_s`` seconds that begins now, in a key beside those of the test.

    A key that gets as long a life later has at least as much of it left, however late Redis is
    asked.
    """

    def __init__(self, redis: Callable[..., Any], ttl_s: int) -> None:
        """``redis`` runs a command."""
        self._redis, self._ttl_s, self._mark = redis, ttl_s, f"life-{secrets.token_hex(8)}"
        redis("SET", self._mark, "", "EX", ttl_s)

    def given_to(self, *keys: str) -> bool:
        """Whether each key has got such a life since this one began."""
        return self.covers(*[self._redis("PTTL", key) for key in keys])

    def covers(self, *left_ms: int) -> bool:
        """The same for what PTTL has said of keys."""
        mark = self._redis("PTTL", self._mark)  # asked last: it has less with every moment
        return all(0 < mark <= each <= 1000 * self._ttl_s for each in left_ms)


def wait_in_sync(master: EmbeddedRedis) -> None:
    """Return when a replica has all that this master has executed. WAIT knows of the writes of its
    own connection only.
    """

    def read(pattern: str, port: int) -> list[int]:
        said = send_command(
            port, "INFO", "replication", password=master._password, timeout_s=PATIENCE_S
        )
        return [int(number) for number in re.findall(pattern, str(said))]

    [written] = read(r"master_repl_offset:(\d+)", master.port)
    replicas = r"slave\d+:.*port=(\d+)"
    wait_until(
        lambda: any(
            read(r"slave_repl_offset:(\d+)", port) >= [written]
            for port in read(replicas, master.port)
        ),
        what="a replica is in sync",
    )


def lasting_port() -> int:
    """A free port of 127.0.0.1 that stays free: the system does not assign it to another
    process.
    """
    return next(port for port in iter(server._random_port, 0) if server._is_free(port))


def ps(column: str, pid: int) -> str:
    """One column of ps for this process; empty when there is none."""
    return subprocess.run(
        ["ps", "-o", f"{column}=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()


def gone(pid: int) -> bool:
    """No such process, or only its entry that init has not collected yet."""
    return ps("stat", pid)[:1] in ("", "Z")
