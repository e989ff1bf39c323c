"""The token of a lease: it names the host and process of the holder, so that a holder that died on
this machine is replaced at once.

A lease is a Redis key with a ttl and ends by itself in any case.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from busmq_spark.redis_io.queue_location import new_token

LEASE_MS = 15_000
"""Milliseconds for which a killed reader keeps its queues, unless it ran on the machine of the next
reader.
"""


def my_token(*, with_parent: bool = False) -> str:
    """A new token for this process; ``with_parent``: one that lives no longer than the process that
    started it.
    """
    processes = (os.getpid(), os.getppid()) if with_parent else (os.getpid(),)
    return "|".join((new_token(), this_machine(), *map(process_name, processes)))


def is_dead(token: str) -> bool:
    """Whether the holder is known to be dead: it ran on this machine, and it or the driver that
    started it is gone.
    """
    _, _, rest = token.partition("|")
    where, *processes = rest.split("|")
    return where == this_machine() and any(not is_alive(process) for process in processes)


def describe_holder(token: str) -> str:
    """Return a description of a holder, for people."""
    where, _, processes = token.partition("|")[2].partition("|")
    process = processes.partition("|")[0].partition(".")[0] or "unknown"
    return (
        f"process {process} of {'this machine' if where == this_machine() else f'machine {where}'}"
    )


def is_alive(process: str) -> bool:
    """Whether the process that ``process_name`` named so still runs."""
    pid = process.partition(".")[0]
    return pid.isdigit() and process_name(int(pid)) == process


def this_machine() -> str:
    """Names this machine (and its process namespace, so that two containers differ) for as long as
    it is up.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def process_name(pid: int) -> str:
    """Names a process, and differs from that of a later process with the same pid; empty when there
    is no such process.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return "" if _is_process_gone(pid) else f"{pid}"
    fields = stat.rpartition(")")[2].split()
    return (
        "" if fields[0] in "ZX" else f"{pid}.{fields[19]}"
    )  # a zombie is dead; field 22 of proc(5) is the start time


def _is_process_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
