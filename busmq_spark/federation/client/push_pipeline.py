"""Pushing to a remote object: in the order of the calls, many under way, nothing sent twice.

Rule 1. If the remote object is lost, pushes under way fail with FederationLost: whether they are
        stored is unknown. The rest waits for the next.
Rule 2. A queue with a maxsize is pushed to one by one, so that of a call that does not fit a
        beginning is stored and the rest is not.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from busmq_spark.bus.queue.push import PendingPush
from busmq_spark.errors import BusError, FederationLost, MessageRefused, QueueFull, WireError
from busmq_spark.federation import error_codec
from busmq_spark.federation.client import checked_values

if TYPE_CHECKING:
    from busmq_spark.federation.client.remote_reconnector import RemoteReconnector

log = logging.getLogger("busmq_spark")
MAX_PUSHES_UNDER_WAY = 1000
"""Most pushes of one object under way; each keeps a number of its own at the server. Their bytes
are bounded per socket (flow_control.py).
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
            stored = checked_values.expect_number(id, "the id of a push")
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
        try:
            await self._handle.wait_open()
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
