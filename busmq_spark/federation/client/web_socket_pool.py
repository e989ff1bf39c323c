"""The hot web sockets to one federation server; remote objects are spread over them in turn
(protocol 5.8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from busmq_spark.errors import BusError, FederationRefused, TlsError
from busmq_spark.federation.client.remote_object_connection import RemoteObjectConnection
from busmq_spark.federation.client.socket import ReconnectingWebSocket

if TYPE_CHECKING:
    from busmq_spark.federation.client.socket import FederationTarget
    from busmq_spark.federation.npm_wire.channels import ObjectCreationMessage


FINAL_FOR_CALLS = (FederationRefused, TlsError)
"""The errors of a socket that a caller gets at once. After a TlsError the pool dials on: the
certificate may be renewed.
"""


class WebSocketPool:
    """Opens nothing before ``start``."""

    def __init__(
        self,
        target: FederationTarget,
        size: int,
        spawn: Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]],
    ) -> None:
        self.target = target
        self._spawn = spawn
        self._change = asyncio.Event()
        self._turn = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.sockets = [
            ReconnectingWebSocket(target, spawn, self._on_socket_change) for _ in range(size)
        ]

    def start(self) -> None:
        """Dial, unless the sockets are running. Raises StateError while the bus is not open."""
        if all(task.done() for task in self._tasks) and not isinstance(
            self.last_error, FederationRefused
        ):
            self._tasks = [
                self._spawn(socket.run(), f"a federation link to {self.target.url}")
                for socket in self.sockets
            ]

    def abort_connections(self) -> None:
        """Abort the connections, which seem dead; they are dialled again."""
        for socket in self.sockets:
            socket.abort_connections()

    async def close(self) -> None:
        """Close every socket."""
        await asyncio.gather(*(socket.close() for socket in self.sockets))

    @property
    def is_alive(self) -> bool:
        """Whether a socket is open: a call that takes its time is under way then, and not lost."""
        return any(socket.is_open for socket in self.sockets)

    @property
    def last_error(self) -> BusError:
        """Why there is no remote object, as far as is known."""
        return next(
            (socket.why for socket in self.sockets if isinstance(socket.why, FINAL_FOR_CALLS)),
            self.sockets[0].why,
        )

    async def create_remote(
        self,
        creation: ObjectCreationMessage,
        on_lost: Callable[[RemoteObjectConnection, BusError], None],
    ) -> RemoteObjectConnection:
        """A new remote object, open. Waits for a socket; raises FederationRefused, and
        FederationLost when one breaks under way.
        """
        open_ = await self.wait_for_open_sockets()
        self._turn += 1
        remote = RemoteObjectConnection(open_[self._turn % len(open_)], creation, on_lost)
        try:
            await remote.wait_open()
        except BaseException:
            remote.close()
            raise
        return remote

    async def wait_for_open_sockets(self) -> list[ReconnectingWebSocket]:
        """The open sockets; waits for the first. Raises FederationRefused, TlsError."""
        self.start()
        while not (found := [socket for socket in self.sockets if socket.is_open]):
            if isinstance(why := self.last_error, FINAL_FOR_CALLS):
                raise why
            self._change.clear()
            await self._change.wait()
        return found

    def _on_socket_change(self) -> None:
        self._change.set()
