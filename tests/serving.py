"""``busmq serve`` in a process of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Self

from tests.cli.conftest import COMMAND, environment
from tests.support import PATIENCE_S


def everything(secret: str) -> str:
    """The file of secrets of a server that has one, which may do everything."""
    return f'[all]\nsecret = "{secret}"\nread = ["*"]\nwrite = ["*"]\nadmin = ["*"]\n'


class Serving:
    """A federation server before ``redis_url``: it listens at ``url``, and ends gracefully with the
    scope.
    """

    def __init__(
        self, redis_url: str, folder: Path, secrets: str, *options: str, listen: str = "127.0.0.1:0"
    ) -> None:
        """``secrets`` is the text of that file. What an earlier one in the same folder has logged
        stays.
        """
        file, self.log = folder / "secrets.toml", folder / "serve.log"
        file.touch(0o600)
        file.write_text(secrets)
        command = [
            *COMMAND,
            "serve",
            "--json",
            "--listen",
            listen,
            "--secrets",
            str(file),
            *options,
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=environment(redis_url),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        self.url: str = json.loads(line)["url"]
        self.port = int(self.url.rpartition(":")[2].partition("/")[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self._wait()

    def kill(self) -> None:
        """SIGKILL, unless it is gone."""
        self.process.kill()
        self._wait()

    def _wait(self) -> None:
        self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
