"""A man in the middle of any two ends of a TCP connection: cuts at a byte, cuts now, delays,
throttles, and goes silent without closing.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PIECE = 16 * 1024


class Cutter:
    """Listens on ``port``; each connection there is one to ``target``. All settings may be changed
    at any time.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.down: Iterator[int] = iter(())
        """After how many bytes from the server the next connections are cut, one after the other;
        when it ends they are not.
        """
        self.up: Iterator[int] = iter(())
        """The same towards the server."""
        self.bytes_per_s: float | None = None
        self.delay_s = 0.0
        self.connections = 0
        self._open: set[socket.socket] = set()
        self._hushed: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=50)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="cutter", daemon=True).start()

    def hush(self) -> None:
        """The present connections pass no more bytes, and neither end sees a close; later
        connections work.
        """
        with self._lock:
            self._hushed |= self._open

    def cut(self) -> None:
        """Cut every connection, now, in the middle of whatever passes."""
        with self._lock:
            doomed = list(self._open)
        for sock in doomed:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(
                socket.SHUT_RDWR
            )  # closing alone leaves a thread that accepts where it is
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
                for sock in (client, server):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections += 1
                with self._lock:
                    self._open |= {client, server}
                limits = next(self.up, None), next(self.down, None)
                threading.Thread(
                    target=self._pass, args=(client, server, *limits), daemon=True
                ).start()

    def _pass(
        self, client: socket.socket, server: socket.socket, up: int | None, down: int | None
    ) -> None:
        """One connection, to its end."""
        with client, server:
            back = threading.Thread(target=self._pump, args=(server, client, down), daemon=True)
            back.start()
            self._pump(client, server, up)
            back.join()
        with self._lock:
            self._open -= {client, server}
            self._hushed -= {client, server}

    def _pump(self, source: socket.socket, drain: socket.socket, limit: int | None) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(_PIECE):
                if source in self._hushed:
                    continue
                if self.delay_s or self.bytes_per_s:
                    # The fault itself: a link that is far away, or slow.
                    time.sleep(
                        self.delay_s + (len(data) / self.bytes_per_s if self.bytes_per_s else 0)
                    )
                if limit is not None and passed + len(data) >= limit:
                    drain.sendall(data[: limit - passed])
                    break
                drain.sendall(data)
                passed += len(data)
        for sock in (source, drain):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutter(target: int) -> Iterator[Cutter]:
    made = Cutter(target)
    try:
        yield made
    finally:
        made.close()
