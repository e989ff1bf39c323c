"""Rules of event loops: sockets after a fork, and limits that count turns of the loop.

Sockets of asyncio connections after a fork: the child has none of them.

A child that is forked shares sockets, and the event loop's epoll, with its parent. Whatever closed
a connection there, if only garbage collection, would take the socket out of the parent's epoll, or
write a farewell of TLS into it. So in the child each descriptor leads nowhere.

A time limit for what an event loop waits for.

asyncio's own limits take a loop that was blocked, or a process without CPU time, for a peer that is
silent: when the loop runs again, they end a wait whose answer is there already.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from types import TracebackType
from typing import Self

from busmq_spark.errors import StateError


class OpenTransports(weakref.WeakSet[asyncio.BaseTransport]):
    """The transports of this process. If the package travels by value, the set travels empty."""

    def __reduce__(self) -> tuple[type[OpenTransports], tuple[()]]:
        return (OpenTransports, ())


_open = OpenTransports()


def keep_from_children(transport: asyncio.BaseTransport) -> None:
    """Let no process that is forked from now on use the socket of a transport."""
    _open.add(transport)


def forked_error(what: str) -> StateError:
    """Return the error of an object that is used in a child of the process that opened it."""
    state = "open in the process that this one was forked from"
    return StateError(
        event="use",
        what=what,
        state=state,
        remedy="Make one of its own in each process, after the fork",
    )


def other_loop_error(what: str) -> StateError:
    """Return the error of an object that is used on another event loop than its own."""
    return StateError(
        event="use",
        what=what,
        state="open on another event loop",
        remedy="Make one of its own on each loop",
    )


def _detach_sockets() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for transport in list(_open):
        socket = transport.get_extra_info("socket")
        if socket is not None and socket.fileno() >= 0:
            os.dup2(nowhere, socket.fileno(), inheritable=False)
    os.close(nowhere)
    _open.clear()


os.register_at_fork(after_in_child=_detach_sockets)


TURNS = 20
"""The parts of a limit. Each ends in a turn of the loop of its own."""


class LoopTimeout:
    """An ``asyncio.timeout`` that counts a turn of the loop as a part of the limit at most, however
    long it took. So what is under way has had that many turns before it is cancelled.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(None)
        self._turns = 0
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self.restart(self._seconds)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cancel_timer()
        await self._timeout.__aexit__(kind, error, traceback)

    def expired(self) -> bool:
        """Whether the limit ended the block."""
        return self._timeout.expired()

    def restart(self, seconds: float) -> None:
        """Begin a limit of so many seconds now."""
        self._cancel_timer()
        self._seconds, self._turns = seconds, TURNS
        self._count_turn()

    def _count_turn(self) -> None:
        loop = asyncio.get_running_loop()
        if self._turns:
            self._turns -= 1
            self._timer = loop.call_later(self._seconds / TURNS, self._count_turn)
        elif not self._timeout.expired():
            self._timeout.reschedule(loop.time())

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
