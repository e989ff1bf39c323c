"""Keeps an object of the bus connected to its remote object: a new one when the old is lost, and
its state before anything else.

Rule 1. There is one remote object at a time. Messages of an old one are ignored.
Rule 2. An object with ``keep_open`` comes back however long it takes; any other gets a remote
        object when it has something to ask.

| state | attributes | event | next state |
|---|---|---|---|
| closed | neither ``remote`` nor ``_coming`` | a call, or ``open_and_keep`` | opening |
| opening | ``_coming`` | the remote object is there, with its state | open |
| opening | | the link breaks, or the server closes the channel | opening, after a pause |
| opening | | the server refuses it for good | closed |
| opening | | no caller waits any more, without ``keep_open`` | closed |
| open | ``remote`` | the link breaks, with ``keep_open`` | opening |
| open | | the link breaks, without ``keep_open`` | closed |
| open | | ``close``, or unused for IDLE_REMOTE_S without ``keep_open`` | closed |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from busmq_spark.errors import BusError, FederationLost, FederationRefused, TlsError
from busmq_spark.federation.client import socket
from busmq_spark.federation.client.remote_object_connection import RemoteObjectConnection
from busmq_spark.federation.client.web_socket_pool import WebSocketPool
from busmq_spark.federation.npm_wire.creation_message import ObjectCreationMessage
from busmq_spark.redis_io.retry import (
    PATIENCE_S,
    Pauses,
)  # how long a call waits for an unreachable server, as long as for Redis

STATE_POLL_S = 0.25
END_TIMEOUT_S = 1.5
"""Seconds that the server may take to confirm the end of an object."""
IDLE_REMOTE_S = 30.0
"""Seconds for which an object that is neither attached nor subscribed keeps an unused remote
object.
"""
log = logging.getLogger("busmq_spark")


class RemoteObjectListener:
    """The object, as seen by its handle."""

    def on_remote_lost(self, why: BusError) -> None:
        """The remote object is gone; an object to be kept open gets another."""

    def on_remote_restored(self) -> None:
        """A remote object is there again, with its state."""

    def on_remote_failed(self, error: BusError) -> None:
        """Called when the object is refused for good, and for each error while it reconnects, which
        goes on.
        """


class RemoteReconnector:
    """``restore`` makes a new remote object what the old one was; it may raise FederationLost."""

    def __init__(
        self,
        pool: WebSocketPool,
        creation: ObjectCreationMessage,
        spawn: Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]],
        owner: RemoteObjectListener,
        restore: Callable[[RemoteObjectConnection], Awaitable[None]],
    ) -> None:
        self.keep_open = False
        self.remote: RemoteObjectConnection | None = None
        """The remote object, when everything is restored on it."""
        self._pool, self._creation, self._spawn, self._owner, self._restore = (
            pool,
            creation,
            spawn,
            owner,
            restore,
        )
        self._coming: asyncio.Future[RemoteObjectConnection] | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting = 0
        self._failed: FederationLost | TlsError | None = None
        self._idle: asyncio.TimerHandle | None = None

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self._pool.target.url

    async def wait_open(self) -> RemoteObjectConnection:
        """The remote object. Waits as long as a socket to the server is open: much may be under way
        on it.

        Raises FederationLost when there is none for PATIENCE_S, or tries have failed for as long;
        FederationRefused, and what restoring raises.
        """
        if self.remote is not None:
            return self.remote
        coming = self._start_opening()
        self._waiting += 1
        try:
            await self._wait_with_patience(coming)
            return await asyncio.shield(coming)
        finally:
            self._waiting -= 1
            self._cancel_unneeded_opening()

    async def _wait_with_patience(self, coming: asyncio.Future[RemoteObjectConnection]) -> None:
        waited_s = unseen_s = 0.0  # by polls: a loop that was blocked says nothing of the server
        while not coming.done():
            await asyncio.wait({coming}, timeout=STATE_POLL_S)
            waited_s += STATE_POLL_S
            unseen_s = 0.0 if self._pool.is_alive else unseen_s + STATE_POLL_S
            if self._failed is not None and waited_s > PATIENCE_S:
                raise self._failed
            if unseen_s > PATIENCE_S:
                raise self._unreachable_error()

    def open_and_keep(self) -> None:
        """Open a remote object, now and whenever it is lost, without waiting for it."""
        self.keep_open = True
        self._start_opening()

    async def call_for_result(self, method: str, *args: Any, again: bool = True) -> list[Any]:
        """Return the arguments of the callback after the error. A call that changes nothing is
        repeated when the link breaks; ``again=False`` is for others.
        """
        until = asyncio.get_running_loop().time() + PATIENCE_S
        self._restart_idle_timer()
        while True:
            remote = await self.wait_open()
            try:
                return await remote.call_for_result(method, *args)
            except FederationLost:
                if not again or asyncio.get_running_loop().time() > until:
                    raise

    async def end_and_wait(self, method: str, event: str) -> None:
        """Call the method that ends the object and wait for its event, if there is a remote object:
        closing that ends it anyhow.
        """
        if (remote := self.remote) is None:
            return
        done = remote.next_event(event)
        remote.call_without_reply(method)
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await done
        except (TimeoutError, FederationLost) as error:
            log.debug("%r: no word that it is %s: %s", self._owner, event, error)

    def close(self) -> None:
        """Let go of the remote object; the server detaches it. A later call opens another."""
        self.keep_open = False
        remote, self.remote = self.remote, None
        if remote is not None:
            remote.close()
        self._cancel_unneeded_opening()

    def _restart_idle_timer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = (
            None
            if self.keep_open
            else asyncio.get_running_loop().call_later(IDLE_REMOTE_S, self._close_if_unused)
        )

    def _close_if_unused(self) -> None:
        if self.keep_open or self.remote is None:
            return
        if self._waiting or self.remote.is_awaiting_reply:
            self._restart_idle_timer()
        else:
            self.close()

    # -- inside ------------------------------------------------------------------------------------

    def _start_opening(self) -> asyncio.Future[RemoteObjectConnection]:
        if self._coming is None:
            self._coming = asyncio.get_running_loop().create_future()
            self._task = self._spawn(
                self._open_remote(self._coming, back=self.keep_open),
                f"opening a remote object for {self._owner!r}",
            )
        return self._coming

    async def _open_remote(
        self, coming: asyncio.Future[RemoteObjectConnection], *, back: bool
    ) -> None:
        """Until there is a remote object. ``back``: there was one before, so there may be no caller
        to raise an error to.
        """
        pauses = Pauses(*socket.DIAL_PAUSES_S)
        try:
            while True:
                self._failed = None
                try:
                    remote = await self._create_remote()
                    break
                except FederationLost as error:
                    self._failed = error
                except FederationRefused:
                    raise
                except TlsError as error:
                    if not back:
                        raise
                    self._failed = error
                except BusError as error:
                    if not back:
                        raise
                    self._owner.on_remote_failed(error)
                await asyncio.sleep(pauses.next_s())
        except BusError as error:
            self._forget_opening(coming)
            coming.set_exception(error)
            coming.exception()  # retrieved: there may be no waiting caller
            if back:
                self.keep_open = False
                self._owner.on_remote_failed(error)
            return
        except asyncio.CancelledError:
            self._forget_opening(coming)
            coming.set_exception(FederationLost(url=self.url, reason="the bus was closed"))
            coming.exception()
            raise
        self.remote, self._coming = remote, None
        coming.set_result(remote)
        if back:
            self._owner.on_remote_restored()

    def _forget_opening(self, coming: asyncio.Future[RemoteObjectConnection]) -> None:
        if self._coming is coming:  # one that was called off may end after the next began
            self._coming = None

    async def _create_remote(self) -> RemoteObjectConnection:
        remote = await self._pool.create_remote(self._creation, self._on_remote_lost)
        try:
            await self._restore(remote)
        except BaseException:
            remote.close()
            raise
        if remote.over:
            raise self._unreachable_error()
        return remote

    def _on_remote_lost(self, remote: RemoteObjectConnection, why: BusError) -> None:
        if remote is not self.remote:
            return  # it broke while its state was being restored: the restoring task gets the error
        self.remote = None
        self._owner.on_remote_lost(why)
        if self.keep_open:
            with suppress(BusError):  # the bus is closed
                self._start_opening()

    def _cancel_unneeded_opening(self) -> None:
        if (
            self._task is not None
            and not self._waiting
            and not self.keep_open
            and self._coming is not None
        ):
            self._task.cancel()
            self._coming = None

    def _unreachable_error(self) -> BusError:
        why = self._failed or self._pool.last_error
        return (
            why
            if isinstance(why, FederationLost)
            else FederationLost(url=self.url, reason="no answer in good time")
        )
