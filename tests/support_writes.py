"""A Redis that refuses writes for as long as a test says, and notices that it was asked for
some.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from busmq_spark.embedded import EmbeddedRedis
from tests.support import wait_until

CAUSES = ["NOREPLICAS", "MISCONF"]


def pause_writes(server: EmbeddedRedis, cause: str) -> None:
    """Let the server refuse writes from now on."""
    if cause == "NOREPLICAS":
        server.command("CONFIG", "SET", "min-replicas-to-write", "1")
        return
    (Path(config(server, "dir")) / config(server, "dbfilename") / "in the way").mkdir(
        parents=True, exist_ok=True
    )
    server.command("CONFIG", "SET", "save", "3600 1")
    server.command("CONFIG", "SET", "stop-writes-on-bgsave-error", "yes")
    server.command("BGSAVE")
    wait_until(
        lambda: "rdb_last_bgsave_status:err" in info(server, "persistence"),
        what="Redis cannot save",
    )


def resume_writes(server: EmbeddedRedis) -> None:
    server.command("CONFIG", "SET", "min-replicas-to-write", "0")
    server.command("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")


def refusals(server: EmbeddedRedis) -> int:
    """Return how many calls the server has refused since it began."""
    found = [
        line for line in info(server, "errorstats").splitlines() if line.startswith("errorstat_")
    ]
    return sum(int(line.rpartition("count=")[2]) for line in found)


def info(server: EmbeddedRedis, section: str) -> str:
    found = server.command("INFO", section)
    return found.decode() if isinstance(found, bytes) else str(found)


def config(server: EmbeddedRedis, name: str) -> str:
    found: Any = server.command("CONFIG", "GET", name)
    return found[1].decode() if isinstance(found[1], bytes) else str(found[1])


@contextmanager
def writes_paused(server: EmbeddedRedis, cause: str, count: int = 3) -> Iterator[None]:
    """Writes are refused from the beginning of the block until so many calls were refused."""
    pause_writes(server, cause)
    until = refusals(server) + count

    def lift() -> None:
        try:
            wait_until(lambda: refusals(server) >= until, what=f"{count} calls are refused")
        finally:
            resume_writes(server)

    thread = Thread(target=lift)
    thread.start()
    try:
        yield
    finally:
        thread.join()
