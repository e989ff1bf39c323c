"""Sockets of asyncio connections after a fork: the child has none of them.

A child that is forked shares sockets, and the event loop's epoll, with its parent. Whatever closed
a connection there, if only garbage collection, would take the socket out of the parent's epoll, or
write a farewell of TLS into it. So in the child each descriptor leads nowhere.
"""

from __future__ import annotations

import asyncio
import os
import weakref

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
