"""A Redis whose every answer a test decides: for what a real one does only when it likes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import hiredis

from busmq_spark.errors import LinkLost
from busmq_spark.redis_io.urls import RedisServerAddress
from tests.support import wait_until

CLOSE = b"CLOSE"
"""Instead of an answer, or at its end: the connection is closed."""
Words = list[bytes]


class FakeRedis:
    """Answers handshakes itself; every other command with what ``answer(number, words)`` says, in
    RESP. Counts from 1 over all connections.
    """

    def __init__(self, answer: Callable[[int, Words], bytes]) -> None:
        self._answer = answer
        self.seen: list[Words] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.server = RedisServerAddress("127.0.0.1", self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept)

    def __enter__(self) -> FakeRedis:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone does not wake an accept; a visitor does.
        listener, self._listener = self._listener, None  # type: ignore[assignment]
        with socket.create_connection(("127.0.0.1", self.server.port)):
            pass
        self._thread.join()
        listener.close()
        for each in self._open:
            each.close()

    def _accept(self) -> None:
        threads = []
        listener = self._listener
        while True:
            connection, _ = listener.accept()
            if self._listener is None:
                connection.close()
                break
            self._open.append(connection)
            self.connections += 1
            threads.append(threading.Thread(target=self._serve, args=(connection,)))
            threads[-1].start()
        for each in self._open:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # already closed
        for thread in threads:
            thread.join()

    def _serve(self, connection: socket.socket) -> None:
        reader = hiredis.Reader()
        try:
            while data := connection.recv(65536):
                reader.feed(data)
                while (words := reader.gets()) is not False:
                    reply = self._reply(words)
                    connection.sendall(reply.removesuffix(CLOSE))
                    if reply.endswith(CLOSE):
                        return
        except OSError:
            return  # the client went away
        finally:
            connection.close()

    def _reply(self, words: Words) -> bytes:
        if words[0] in (b"CLIENT", b"AUTH", b"SELECT", b"HELLO"):
            return b"+OK\r\n"
        self.seen.append(words)
        return self._answer(len(self.seen), words)


def answered(ask: Callable[[], object]) -> object:
    """What a server of an impatient link answers: on a busy machine it may need longer than that at
    first.
    """
    answers: list[object] = []

    def asked() -> bool:
        with suppress(LinkLost):
            answers.append(ask())
        return bool(answers)

    wait_until(asked)
    return answers[0]


def says(*answers: bytes) -> Callable[[int, Words], bytes]:
    """These answers in turn; the last one for ever."""
    return lambda number, words: answers[min(number, len(answers)) - 1]
