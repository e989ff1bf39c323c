"""``busmq serve`` in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Self

SECRET = "open-sesame-for-the-browser"  # of this test only


class Serving:
    """A federation server before ``redis_url``; ends gracefully with the scope."""

    def __init__(self, redis_url: str, folder: Path, port: int = 0) -> None:
        secrets = folder / "secrets.toml"
        secrets.touch(mode=0o600)
        secrets.write_text(f'[pages]\nsecret = "{SECRET}"\nread = ["*"]\nwrite = ["*"]\nadmin = ["*"]\n')
        self._line = [sys.executable, "-m", "busmq_spark", "serve", "--json", "--listen", f"127.0.0.1:{port}", "--secrets", str(secrets)]
        self._variables = {**os.environ, "BUSMQ_REDIS_URL": redis_url}
        self.url = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._line, env=self._variables, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = json.loads(self._process.stdout.readline())["url"]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=120)

    def refused(self) -> int:
        """How many handshakes it has refused for their secret."""
        address = re.sub(r"^ws(://[^/]*)/.*", r"http\1/metrics", self.url)
        with urllib.request.urlopen(address, timeout=120) as answer:
            text = answer.read().decode()
        [found] = re.findall(r'^busmq_federation_refused_total\{reason="secret"\} (\d+)', text, re.MULTILINE)
        return int(found)
