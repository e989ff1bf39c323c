"""Pushing to a remote object: in the order of the calls, many under way, nothing sent twice.

Rule 1. If the remote object is lost, pushes under way fail with FederationLost: whether they are
        stored is unknown. The rest waits for the next.
        A push that comes while there is none waits with a patience of its own.
Rule 2. A queue with a maxsize is pushed to one by one, so that of a call that does not fit a
        beginning is stored and the rest is not.

Keeps an object of the bus connected to its remote object: a new one when the old is lost, and
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
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from busmq_spark.bus.queue.push import PendingPush
from busmq_spark.errors import (
    BusError,
    FederationLost,
    FederationRefused,
    MessageRefused,
    QueueFull,
    TlsError,
    WireError,
)
from busmq_spark.federation import error_codec
from busmq_spark.federation.client import remote_object_connection, socket
from busmq_spark.federation.client.remote_object_connection import RemoteObjectConnection
from busmq_spark.federation.client.web_socket_pool import WebSocketPool
from busmq_spark.federation.npm_wire.channels import ObjectCreationMessage
from busmq_spark.redis_io.retry import PATIENCE_S, Pauses

log = logging.getLogger("busmq_spark")
MAX_PUSHES_UNDER_WAY = 1000
"""Most pushes of one object under way; each keeps a number of its own at the server. Their bytes
are bounded per socket (socket.py).
"""


class RemotePushPipeline:
    """The pushes of one object, by ``method``. ``stored`` is called for each message that is."""

    def __init__(
        self,
        handle: RemoteReconnector,
        method: str,
        name: str,
        spawn: Callable[..., Any],
        stored: Callable[[], None],
    ) -> None:
        self.maxsize = 0
        self._handle, self._method, self._name, self._spawn, self._stored = (
            handle,
            method,
            name,
            spawn,
            stored,
        )
        self._pending: deque[PendingPush[str]] = deque()
        self._under_way = 0
        self._begun = self._waking = False
        self._idle: asyncio.Event | None = None

    def add(self, values: Sequence[str], *, single: bool) -> asyncio.Future[Any]:
        """The id, or for ``single`` false the list of ids, once everything is stored."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not values:
            future.set_result([])
            return future
        self._pending.append(PendingPush(values, future, single=single))
        self._send_next()
        return future

    async def wait_flushed(self) -> None:
        """Wait until everything added so far is stored or has failed."""
        while self._pending or self._under_way:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    def fail(self, error: BusError) -> None:
        """Nothing of what waits is sent any more."""
        pending, self._pending = self._pending, deque()
        for push in pending:
            push.fail(error)
        self._notify_if_idle()

    # -- inside ------------------------------------------------------------------------------------

    def _send_next(self) -> None:
        remote = self._handle.remote
        if remote is None:
            if self._pending and not self._waking:
                self._start_waiting_for_remote()
            return
        most = 1 if self.maxsize else MAX_PUSHES_UNDER_WAY
        while self._pending and self._under_way < most and not remote.over:
            if not remote.send_window.has_room:
                remote.send_window.call_when_room(self.send_waiting)
                return
            push = self._pending[0]
            if push.sent == len(push.values):
                self._pending.popleft()
                continue
            text = push.values[push.sent]
            push.sent += 1
            self._under_way += 1
            if push.sent == len(push.values):
                self._pending.popleft()
            remote.push(self._method, text, partial(self._on_answer, push))
        self._notify_if_idle()

    def _on_answer(self, push: PendingPush[str], found: list[Any] | BusError) -> None:
        # A remote object that is lost answers all of them: the first must not send before the last
        # has failed
        if not self._begun:
            self._begun = True
            asyncio.get_running_loop().call_soon(self.send_waiting)
        self._under_way -= 1
        if isinstance(found, BusError):
            push.fail(found)
        elif found and found[0] is not None:
            push.fail(error_codec.error_from_wire(found[0]))
        elif len(found) < 2 or found[1] is None:
            left = len(push.values) - len(push.ids)
            push.fail(QueueFull(queue=self._name, maxsize=self.maxsize, left=left, waited=""))
        else:
            self._on_stored_id(push, found[1])

    def _on_stored_id(self, push: PendingPush[str], id: Any) -> None:
        try:
            stored = remote_object_connection.expect_number(id, "the id of a push")
            push.on_stored(stored, 1)
            self._stored()
            if log.isEnabledFor(logging.DEBUG):
                log.debug("%s: pushed id %d to %r", self._handle.url, stored, self._name)
        except WireError as error:
            push.fail(error)
            raise

    def send_waiting(self) -> None:
        """Send what waits, if there is a remote object."""
        self._begun = False
        self._send_next()

    def _start_waiting_for_remote(self) -> None:
        self._waking = True
        try:
            self._spawn(self._wait_for_remote(), f"pushing to {self._name}")
        except BusError as error:  # the bus is closed
            self._waking = False
            self.fail(error)

    async def _wait_for_remote(self) -> None:
        """Wait for a remote object. A wait that is in vain fails the pushes that were there when it
        began; later ones have a wait of their own.
        """
        waiting = len(self._pending)
        try:
            await self._handle.wait_open()
        except FederationLost as error:
            for _ in range(waiting):
                self._pending.popleft().fail(error)
            self._notify_if_idle()
        except BusError as error:
            self.fail(error)
        except asyncio.CancelledError:
            self.fail(FederationLost(url=self._handle.url, reason="the bus was closed"))
            raise
        finally:
            self._waking = False
        self._send_next()

    def _notify_if_idle(self) -> None:
        if self._idle is not None and not self._pending and not self._under_way:
            self._idle.set()
            self._idle = None


def decode_utf8(data: bytes) -> str:
    """Raises MessageRefused for bytes that are no text: federation carries JSON."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MessageRefused(
            reason=(
                f"the bytes are no UTF-8 ({error.reason} at {error.start}), and federation carries"
                " text; push them in base64"
            )
        ) from None


STATE_POLL_S = 0.25
END_TIMEOUT_S = 1.5
"""Seconds that the server may take to confirm the end of an object."""
IDLE_REMOTE_S = 30.0
"""Seconds for which an object that is neither attached nor subscribed keeps an unused remote
object.
"""


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
