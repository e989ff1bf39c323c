"""Processes of programs that tests kill: told the servers of a layout, and listened to line by
line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]


class Killable:
    """``python -m tests.bus.<program> <place> …``, where place is the arguments of Bus in JSON. It
    prints lines of JSON.
    """

    def __init__(self, process: Process) -> None:
        self.process, self.said = process, list[Any]()
        self.killed_at = float("inf")
        """When it was told to end, by the monotonic clock of the machine: it had not died
        before.
        """
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, program: str, place: Mapping[str, Any], *words: object) -> Self:
        command = (
            sys.executable,
            "-m",
            f"tests.bus.{program}",
            json.dumps(place),
            *map(str, words),
        )
        return cls(
            await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, stdin=PIPE, stdout=PIPE, limit=2**20
            )
        )

    def heard(self, said: Any) -> None:
        """A line that it has printed."""
        self.said.append(said)

    async def kill(self) -> list[Any]:
        """SIGKILL, unless it has ended; what it has printed."""
        self.killed_at = min(self.killed_at, time.monotonic())
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._reading
        return self.said

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.heard(json.loads(line))
