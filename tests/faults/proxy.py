"""A man in the middle of Spark and Redis, who can stop any command at the very moment it is sent,
or its reply.

This is how a test kills something at an exact point without a hook in the product: it holds the
command that marks the point, looks at Redis and at the checkpoint, kills, and then lets the command
through (a late packet) or drops it (one that never left).
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from busmq_spark.queue.scripts import load, script_names
from tests.support import PATIENCE_S


@dataclass(frozen=True)
class Command:
    """One request. A script is known by its name, whether it travels as text or as digest."""

    words: list[bytes]
    name: str
    keys: list[str]
    args: list[bytes]

    @classmethod
    def of(cls, words: list[bytes]) -> Command:
        verb = words[0].decode().upper()
        if verb in ("EVAL", "EVALSHA"):
            split = 3 + int(words[2])
            return cls(
                words,
                _scripts().get(words[1], "?"),
                [key.decode() for key in words[3:split]],
                words[split:],
            )
        return cls(words, verb, [word.decode("utf-8", "replace") for word in words[1:2]], words[2:])


def ends_the_queue(command: Command) -> bool:
    """Whether it is the last ``commit`` of a batch in its queue."""
    if command.name != "commit":
        return False
    _nth, moved, count, total, last = (int(arg) for arg in command.args[3:8])
    return last == 1 and moved + count == total


def _scripts() -> dict[bytes, str]:
    if not _NAMES:
        for name in script_names():
            script = load(name)
            _NAMES[script.digest.encode()] = _NAMES[script.text.encode()] = name
    return _NAMES


_NAMES: dict[bytes, str] = {}


@dataclass
class Held:
    """A command that was stopped, on the connection between ``ports``: the client's and the
    proxy's.
    """

    command: Command
    ports: tuple[int, int]
    _wire: _Wire
    _answer: queue.SimpleQueue[bool] = field(default_factory=queue.SimpleQueue)

    def release(self) -> None:
        """Let it go on to Redis (or its reply to the client)."""
        self._answer.put(True)

    def cut(self) -> None:
        """Break the link for the client alone: what it has sent stays under way, and arrives with
        :meth:`arrive`.
        """
        self._wire.cut()

    def arrive(self) -> None:
        """Deliver what is under way on a link that was cut; returns when Redis has executed all of
        it.
        """
        self.release()
        assert self._wire.ended.wait(PATIENCE_S)

    def drop(self) -> None:
        """Lose it, and the connection with it."""
        self._answer.put(False)

    def wait(self) -> bool:
        return self._answer.get()


class Gate:
    """Stops every command that matches, one by one, until it is opened."""

    def __init__(
        self, matches: Callable[[Command], bool], *, reply: bool, skip: int, alone: bool
    ) -> None:
        self._matches = matches
        self.reply = reply
        self.alone = alone
        self._skip = skip
        self._lock = threading.Lock()
        self._held: queue.Queue[Held] = queue.Queue()
        self._open = False

    def stops(self, command: Command) -> bool:
        if self._open or not self._matches(command):
            return False
        with self._lock:
            self._skip -= 1
            return self._skip < 0

    def take(self, held: Held) -> bool:
        self._held.put(held)
        if self._open:
            self._let_go()
        return held.wait()

    def wait(self, timeout_s: float = PATIENCE_S) -> Held:
        """The next command that stands at the gate."""
        held = self.poll(timeout_s)
        assert held is not None, f"no command came to the gate within {timeout_s} s"
        return held

    def poll(self, timeout_s: float) -> Held | None:
        """The next command, or None when none comes in time."""
        with suppress(queue.Empty):
            return self._held.get(timeout=timeout_s)
        return None

    def open(self) -> None:
        """Stop nothing more; what stands here and was not taken by ``wait`` goes on."""
        self._open = True
        self._let_go()

    def _let_go(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._held.get_nowait().release()


class Proxy:
    """Listens on a port of its own; every connection there is one to ``target_port``. Its death,
    and Redis', are passed on.
    """

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._gates: list[Gate] = []
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self.seen: list[Callable[[Command], None]] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()
        for gate in self._gates:
            gate.open()
        for sock in list(self._sockets):
            _close(sock)

    def hold(
        self,
        matches: Callable[[Command], bool],
        *,
        reply: bool = False,
        skip: int = 0,
        alone: bool = False,
    ) -> Gate:
        """Stop commands that match, after ``skip`` of them; with ``reply`` Redis executes them and
        the answer is stopped, and with ``alone`` what the client has sent behind them in the same
        round trip is not executed.
        """
        gate = Gate(matches, reply=reply, skip=skip, alone=alone)
        self._gates.append(gate)
        return gate

    def _accept(self) -> None:
        while True:
            try:
                client, (_, port) = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                _close(client)
                continue
            server.settimeout(None)
            _Wire(self, client, server, (port, client.getsockname()[1])).start()


class _Wire:
    """One connection: requests are read command by command, and so are replies."""

    def __init__(
        self, proxy: Proxy, client: socket.socket, server: socket.socket, ports: tuple[int, int]
    ) -> None:
        self._proxy, self._client, self._server, self._ports = proxy, client, server, ports
        self._sent = self._answered = 0
        self._progress = threading.Condition()
        self._mute: tuple[int, Gate, Held] | None = None
        """The request whose reply is stopped, by its number."""
        self._alone = False
        self._cut = False
        self.ended = threading.Event()

    def cut(self) -> None:
        self._cut = True
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)

    def start(self) -> None:
        for sock in (self._client, self._server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._proxy._sockets.add(sock)
        threading.Thread(target=self._requests, daemon=True).start()
        threading.Thread(target=self._replies, daemon=True).start()

    def _requests(self) -> None:
        with (
            suppress(OSError, ValueError),
            self._client.makefile("rb", buffering=1 << 18) as stream,
        ):
            while raw := _read_command(stream):
                head, words = raw
                if not self._pass(Command.of(words)):
                    self._end()
                    return
                self._server.sendall(head)
                if self._alone:
                    self._wait_until_answered(self._sent)
        with suppress(OSError):
            self._server.shutdown(
                socket.SHUT_WR
            )  # Redis ends the connection when it has executed what it got

    def _pass(self, command: Command) -> bool:
        for observe in self._proxy.seen:
            observe(command)
        for gate in self._proxy._gates:
            if gate.stops(command):
                held = Held(command, self._ports, self)
                if gate.reply:
                    self._mute = self._mute or (self._sent + 1, gate, held)
                    self._alone = gate.alone
                else:
                    self._wait_until_answered(self._sent)
                    if not gate.take(held):
                        return False
                break
        self._sent += 1
        return True

    def _wait_until_answered(self, count: int) -> None:
        """So that what a test finds in Redis is what the requests before have done, also where the
        client sends several in one round trip.
        """
        with self._progress:
            assert self._progress.wait_for(
                lambda: self._answered >= count or self.ended.is_set(), PATIENCE_S
            )

    def _replies(self) -> None:
        with (
            suppress(OSError, ValueError),
            self._server.makefile("rb", buffering=1 << 18) as stream,
        ):
            while reply := _read_reply(stream):
                if self._mute is not None and self._mute[0] == self._answered + 1:
                    (_, gate, held), self._mute = self._mute, None
                    if not gate.take(held):
                        break
                if not self._cut:
                    self._reply(reply)
                with self._progress:
                    self._answered += 1
                    self._progress.notify_all()
        self._end()

    def _reply(self, reply: bytes) -> None:
        """A client that was killed takes none; what it has sent goes on to Redis all the same, and
        only behind that the link ends.
        """
        try:
            self._client.sendall(reply)
        except OSError:
            self._cut = True

    def _end(self) -> None:
        for sock in (self._client, self._server):
            self._proxy._sockets.discard(sock)
            _close(sock)
        with self._progress:
            self.ended.set()
            self._progress.notify_all()


def _read_command(stream: object) -> tuple[bytes, list[bytes]] | None:
    """The bytes of the next request (an array of bulk strings) and its words; None at the end."""
    head: bytes = stream.readline()  # type: ignore[attr-defined]
    if not head:
        return None
    parts, words = [head], []
    for _ in range(int(head[1:])):
        length = stream.readline()  # type: ignore[attr-defined]
        body = stream.read(int(length[1:]) + 2)  # type: ignore[attr-defined]
        parts += (length, body)
        words.append(body[:-2])
    return b"".join(parts), words


def _read_reply(stream: object) -> bytes:
    """The bytes of the next reply; nothing at the end."""
    head: bytes = stream.readline()  # type: ignore[attr-defined]
    match head[:1]:
        case b"$" if int(head[1:]) >= 0:
            return head + stream.read(int(head[1:]) + 2)  # type: ignore[attr-defined,no-any-return]
        case b"*":
            return head + b"".join(_read_reply(stream) for _ in range(int(head[1:])))
    return head


def _close(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
