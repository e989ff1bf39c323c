"""Data centres: a Redis of its own each, and ``busmq serve`` in front of it in a process that can
be ended and started again.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from busmq_spark.embedded import EmbeddedRedis
from tests.serving import Serving, everything
from tests.support import lasting_port

SECRET = "the-secret-of-all-queues"
READER = "the-secret-of-a-reader-only"
SECRETS = f"""
{everything(SECRET)}
[reader]
secret = "{READER}"
read = ["*"]
deny = ["*private*"]
"""


class DataCentre:
    """``url`` is where its federation server listens, or will again."""

    def __init__(self, folder: Path, host: str) -> None:
        folder.mkdir()
        self.redis = EmbeddedRedis()
        self._folder, self._listen = folder, f"{host}:{lasting_port()}"

    def __enter__(self) -> Self:
        self.redis.start()
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self.redis.stop()

    @property
    def port(self) -> int:
        return int(self._listen.rpartition(":")[2])

    def start(self) -> None:
        """Serve; returns when it listens."""
        self._server = Serving(self.redis.url, self._folder, SECRETS, listen=self._listen)
        self.url = self._server.url

    def kill(self) -> None:
        """SIGKILL, unless it is gone; the Redis stays."""
        self._server.kill()
