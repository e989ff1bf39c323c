"""Data centres: a Redis of its own each, and ``busmq serve`` in front of it in a process that can be ended and started again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from busmq_spark.embedded import RedisServer
from tests.support import lasting_port

ROOT = Path(__file__).parents[2]
SECRET = "the-secret-of-all-queues"
READER = "the-secret-of-a-reader-only"
KEYRING = f"""
[all]
secret = "{SECRET}"
read = ["*"]
write = ["*"]
admin = ["*"]

[reader]
secret = "{READER}"
read = ["*"]
deny = ["*private*"]
"""


class DataCentre:
    """``url`` is where its federation server listens, or will again."""

    def __init__(self, folder: Path, host: str) -> None:
        folder.mkdir()
        self.redis = RedisServer()
        self._secrets, self._log = folder / "secrets.toml", folder / "serve.log"
        self._listen = f"{host}:{lasting_port()}"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._secrets.write_text(KEYRING)
        self._secrets.chmod(0o600)
        self.redis.start()
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        self.redis.stop()

    @property
    def port(self) -> int:
        return int(self._listen.rpartition(":")[2])

    def start(self) -> None:
        """Serve; returns when it listens."""
        command = [sys.executable, "-m", "busmq_spark", "serve", "--listen", self._listen, "--secrets", str(self._secrets), "--json"]
        environ = {**os.environ, "BUSMQ_REDIS_URL": self.redis.url, "PYTHONPATH": str(ROOT)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text()
        self.url: str = json.loads(line)["url"]

    def kill(self) -> None:
        """SIGKILL, unless it is gone; the Redis stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
