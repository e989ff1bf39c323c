"""What must not grow from round to round, in processes that outlive one."""

from __future__ import annotations

from collections.abc import Mapping

import psutil

ALLOWED = {
    "MB of heap": 100,
    "MB resident": 150,
    "threads": 40,
    "threads of Python": 20,
    "open files": 100,
}
"""So much more than at the end of its first round of a kind a process may have at the end of any
other: a first one starts what the kind needs.
"""


class Flat:
    """The figures of each process after its first round."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, str, str], float] = {}

    def grown(self, what: str, pid: int, figures: Mapping[str, float]) -> str:
        """What has grown too far; empty if nothing has."""
        for name, value in figures.items():
            first = self._first.setdefault((pid, what, name), value)
            if value > first + ALLOWED[name]:
                return f"{what} has {value:.0f} {name}, and had {first:.0f} after its first round"
        return ""


def figures_of(pid: int) -> dict[str, float]:
    """Those that the system knows."""
    process = psutil.Process(pid)
    return {
        "MB resident": process.memory_info().rss / 2**20,
        "threads": process.num_threads(),
        "open files": process.num_fds(),
    }
