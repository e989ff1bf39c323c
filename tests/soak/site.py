"""Where a soak happens: one Redis for all rounds, with everything before it that can be cut, held,
slowed or killed.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from busmq_spark.embedded import EmbeddedRedis
from tests.faults.proxy import Proxy
from tests.faults.scene import Bus
from tests.federation.cutting import Cutter, cutter
from tests.serving import Serving, everything
from tests.soak.flat import Flat
from tests.soak.machine import Machine
from tests.support import lasting_port

SECRET = "the-secret-of-the-soak"


class Site:
    """Spark ── proxy (commands) ── line (bytes) ── Redis; or Spark ── far (bytes) ── busmq
    serve ── proxy ── line ── Redis.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            self.machines = {
                name: Machine(self.folder / f"machine-{name}")
                for name in ("spark", "redis", "serve")
            }
            self.flat = Flat()
            with self.machines["redis"].on():
                self.server = stack.enter_context(EmbeddedRedis(self.folder / "redis", aof=True))
            self.line: Cutter = stack.enter_context(cutter(self.server.port))
            self.proxy = stack.enter_context(Proxy(self.line.port))
            self.bus = Bus(self.server)
            self._listen = f"127.0.0.1:{lasting_port()}"
            self.serve()
            stack.callback(self._end_serving)
            self.far: Cutter = stack.enter_context(cutter(self.serving.port))
            self._stack = stack.pop_all()
        self.calm_memory = self.memory()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _end_serving(self) -> None:
        self.serving.kill()

    def serve(self) -> None:
        """Start the federation server, at the address where it was."""
        with self.machines["serve"].on():
            self.serving = Serving(
                self.proxy.url, self.folder, everything(SECRET), listen=self._listen
            )

    @property
    def near(self) -> dict[str, str]:
        """Options that lead to Redis itself."""
        return {"redis.url": self.proxy.url}

    @property
    def away(self) -> dict[str, str]:
        """Options that lead to it through the federation server."""
        return {
            "federation.url": f"dc=ws://127.0.0.1:{self.far.port}/bus",
            "federation.secret": SECRET,
        }

    def calm(self) -> None:
        """End every fault that lasts."""
        for line in (self.line, self.far):
            line.delay_s, line.bytes_per_s = 0.0, None
            line.cut()  # what was hushed stays so
        if not self.server.running:
            self.server.restart()
        self.server.resume()
        self.server.command("CONFIG", "SET", "maxmemory", "0")
        if self.serving.process.poll() is not None:
            self.serve()

    def memory(self) -> int:
        """Bytes that the data of Redis take, its connections not counted."""
        words = str(self.server.command("MEMORY", "STATS")).replace("'", "").split(", ")
        return int(words[words.index("dataset.bytes") + 1])
