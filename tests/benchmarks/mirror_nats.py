"""A stream mirror of NATS JetStream between two servers, where ``nats-server`` is on PATH: what
this package's mirror is measured beside.

``GOBIN=… go install github.com/nats-io/nats-server/v2@v2.10.22`` makes one. Streams are in memory,
as Redis' queues are.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support import lasting_port, wait_until

SERVER = shutil.which("nats-server")


class Client:
    """Speaks the text protocol of NATS: PUB, and requests of the JetStream API."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self._lines = self.socket.makefile("rb")
        self._asked = 0
        self.socket.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nPING\r\n')
        while self._lines.readline() != b"PONG\r\n":
            pass

    def ask(self, what: str, **said: Any) -> Any:
        """A request, and its answer."""
        self._asked += 1
        payload, inbox = json.dumps(said).encode(), b"_INBOX.%d" % self._asked
        words = (inbox, self._asked, self._asked, what.encode(), inbox, len(payload), payload)
        self.socket.sendall(b"SUB %b %d\r\nUNSUB %d 1\r\nPUB $JS.API.%b %b %d\r\n%b\r\n" % words)
        while not (line := self._lines.readline()).startswith(b"MSG"):
            if line == b"PING\r\n":
                self.socket.sendall(b"PONG\r\n")
        answer = json.loads(self._lines.read(int(line.split()[-1]) + 2))
        assert "error" not in answer, answer
        return answer

    def messages(self, stream: str) -> int:
        return int(self.ask(f"STREAM.INFO.{stream}")["state"]["messages"])


@contextmanager
def servers(folder: Path) -> Iterator[tuple[Client, Client]]:
    """Two of them: the second is a leaf of the first, as data centres are joined."""
    assert SERVER is not None
    hub, joins, leaf = (lasting_port() for _ in range(3))
    of = {
        hub: f"leafnodes {{port: {joins}}}",
        leaf: f'leafnodes {{remotes: [{{url: "nats://127.0.0.1:{joins}"}}]}}',
    }
    with ExitStack() as stack:
        for port, name in ((hub, "hub"), (leaf, "leaf")):
            file = folder / f"{name}.conf"
            store = (
                f'jetstream {{domain: {name}, store_dir: "{folder / name}", max_memory_store: 2GB}}'
            )
            file.write_text(f"port: {port}\nserver_name: {name}\n{store}\n{of[port]}\n")
            process = stack.enter_context(
                subprocess.Popen(
                    [SERVER, "-c", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )
            stack.callback(process.kill)
            wait_until(lambda at=port: _listens(at), what=f"{name} of NATS is up")  # type: ignore[misc]
        yield Client(hub), Client(leaf)


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def filled(hub: Client, rows: int, size: int) -> None:
    hub.ask(
        "STREAM.CREATE.bench", name="bench", subjects=["bench"], storage="memory", num_replicas=1
    )
    for _ in range(rows // 1000):
        hub.socket.sendall(publication(size) * 1000)
    wait_until(lambda: hub.messages("bench") == rows, what="the stream is filled")


def publication(size: int) -> bytes:
    """What publishes a message for the stream."""
    return b"PUB bench %d\r\n%b\r\n" % (size, b"x" * size)


def copying(leaf: Client) -> None:
    """Begin the mirror."""
    leaf.ask(
        "STREAM.CREATE.copy",
        name="copy",
        storage="memory",
        mirror={"name": "bench", "external": {"api": "$JS.hub.API"}},
    )


def mirrored_s(leaf: Client, rows: int) -> float:
    """From the first message that is there to the last."""
    copying(leaf)
    while not (before := leaf.messages("copy")):
        pass
    began = time.perf_counter()
    while leaf.messages("copy") < rows:
        time.sleep(0.002)
    took = time.perf_counter() - began
    leaf.ask("STREAM.DELETE.copy")
    return took * rows / (rows - before)
