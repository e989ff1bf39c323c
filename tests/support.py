"""What several test files need."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def wait_until(predicate: Callable[[], object], timeout_s: float, what: str = "") -> None:
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
