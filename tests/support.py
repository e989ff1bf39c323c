"""What several test files need."""

from __future__ import annotations

import subprocess
import threading
import time
from typing import TYPE_CHECKING

from busmq_spark.embedded import server

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 120.0
"""How long a test waits for what takes a moment on a quiet machine: only a red test ever waits so long."""


def wait_until(predicate: Callable[[], object], timeout_s: float = PATIENCE_S, what: str = "") -> None:
    """Return as soon as ``predicate()`` is true; AssertionError that says what was waited for at the deadline.

    It polls every 10 ms and is asked once more at the deadline. An error of the predicate is not swallowed: a test that expects
    refusals on the way catches them itself.
    """
    pause = threading.Event()
    deadline = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or getattr(predicate, '__name__', predicate)}: not so within {timeout_s} s")
        pause.wait(0.01)


def just_given(left_s: int, ttl_s: int) -> bool:
    """Whether what Redis says is left of a life is one of ``ttl_s`` that has just begun; a busy machine may have asked seconds later."""
    return ttl_s - 20 < left_s <= ttl_s


def lasting_port() -> int:
    """A free port of 127.0.0.1 that is free later, too: the system hands it out to nobody."""
    return next(port for port in iter(server._any_port, 0) if server._is_free(port))


def ps(column: str, pid: int) -> str:
    """One column of ps for this process; empty when there is none."""
    return subprocess.run(["ps", "-o", f"{column}=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout.strip()


def gone(pid: int) -> bool:
    """No such process, or only its entry that init has not collected yet."""
    return ps("stat", pid)[:1] in ("", "Z")
