"""Every command a Redis server gets, as MONITOR reports it."""

from __future__ import annotations

import re
import socket
from types import TracebackType
from typing import Self

from busmq_spark.embedded import EmbeddedRedis
from tests.spark.conftest import PATIENCE_S
from tests.support import wait_until


class Monitor:
    """Between enter and exit, the commands clients send; those that scripts call inside the server
    are left out.
    """

    def __init__(self, server: EmbeddedRedis) -> None:
        self._server = server
        self._socket: socket.socket
        self.commands: list[str] = []
        self.words: list[list[str]] = []
        """The commands with what they were given."""
        self.clients: list[str] = []
        """The address from which each of them came."""

    def __enter__(self) -> Self:
        self._socket = socket.create_connection(("127.0.0.1", self._server.port), PATIENCE_S)
        self._socket.sendall(b"MONITOR\r\n")
        assert self._socket.recv(5) == b"+OK\r\n"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        mark = f"monitor-ends-{id(self)}"
        self._server.command("ECHO", mark)
        text = ""

        def complete() -> bool:
            nonlocal text
            text += self._socket.recv(1 << 20).decode("utf-8", "replace")
            return mark in text

        wait_until(complete, PATIENCE_S)
        self._socket.close()
        found = [
            re.match(r'\+\S+ \[\d+ (?P<who>[^\]]+)\] (?P<words>".*")', line)
            for line in text.splitlines()
        ]
        calls = [m for m in found if m and m["who"] != "lua"][:-1]
        self.words = [re.findall(r'"((?:[^"\\]|\\.)*)"', m["words"]) for m in calls]
        self.clients = [m["who"] for m in calls]
        self.commands = [words[0].upper() for words in self.words]
