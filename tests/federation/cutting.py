"""A man in the middle of any two ends of a TCP connection: cuts at a byte, cuts now, delays, throttles, and goes silent without closing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PIECE = 16 * 1024


class Cutter:
    """Listens on ``port``; each connection there is one to ``target``. All settings may be changed at any time."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.down_bytes: int | None = None
        """Cut a connection once so many bytes have come from the server."""
        self.up_bytes: int | None = None
        """The same towards the server."""
        self.bytes_per_s: float | None = None
        self.delay_s = 0.0
        self.silent = threading.Event()
        """While set nothing passes, and nobody is told."""
        self.connections = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=50)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="cutter", daemon=True).start()

    def cut(self) -> None:
        """Cut every connection, now, in the middle of whatever passes."""
        with self._lock:
            doomed, self._open = self._open, set()
        for sock in doomed:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                self.connections += 1
                with self._lock:
                    self._open |= {client, server}
                for source, drain, down in ((client, server, False), (server, client, True)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._pump, args=(source, drain, down), daemon=True).start()

    def _pump(self, source: socket.socket, drain: socket.socket, down: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(_PIECE):
                while self.silent.is_set():
                    time.sleep(0.01)
                limit = self.down_bytes if down else self.up_bytes
                if limit is not None and passed + len(data) >= limit:
                    drain.sendall(data[: max(0, limit - passed)])
                    break
                if self.delay_s or self.bytes_per_s:
                    time.sleep(self.delay_s + (len(data) / self.bytes_per_s if self.bytes_per_s else 0))
                drain.sendall(data)
                passed += len(data)
        for sock in (source, drain):
            with self._lock:
                self._open.discard(sock)
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if down:  # both ends are shut down, so the other pump has ended or is about to
            for sock in (source, drain):
                sock.close()


@contextmanager
def cutter(target: int) -> Iterator[Cutter]:
    made = Cutter(target)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def every(seconds: float, proxy: Cutter) -> Iterator[None]:
    """Cut again and again meanwhile."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(seconds):
            proxy.cut()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
