"""A channel of a web socket as its object sees it: functions of the peer to invoke, tasks, and the
bytes of its calls in work (protocol 5.4, 5.5).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import BusError, MessageRefused, WireError
from busmq_spark.federation import error_codec
from busmq_spark.federation.gate.rights import Identity
from busmq_spark.federation.npm_wire.dnode import (
    DnodeCallbackRef,
    DnodeCallbacks,
    call_message,
    invocation_line,
    invocation_tail,
)
from busmq_spark.federation.npm_wire.mux import PACKET_HEAD_BYTES
from busmq_spark.federation.serve.peer_work import PeerWork

log = logging.getLogger("busmq_spark")


class PeerChannel(ABC):
    """The way from one object to its peer."""

    def __init__(
        self,
        work: PeerWork,
        bus: Bus,
        identity: Identity,
        channel: str,
        close: Callable[[str], None],
    ) -> None:
        self.work, self.bus, self.identity, self.limits = work, bus, identity, work.limits
        self._channel, self._close = channel, close
        self.functions = DnodeCallbacks()
        self._tasks: set[asyncio.Task[None]] = set()
        self._messages = self._bytes = self._partial_bytes = 0
        self.line_bytes = 0
        """Bytes of the line that invokes a function now."""
        self._open = True

    @abstractmethod
    def emit_error(self, text: str) -> None:
        """Send an event ``error`` to the listeners of the object, if there is one."""

    @property
    def is_open(self) -> bool:
        """Whether what is sent to the peer is on its way to it; else nothing should be taken for
        it.
        """
        return self._open and not (self.work.send_buffer.closed or self.work.send_buffer.flooded)

    def close(self) -> None:
        """End the channel from our side."""
        self._close(self._channel)

    # -- to the peer -------------------------------------------------------------------------------

    def invoke(self, id: int, *arguments: Any) -> None:
        """Call a function of the peer. Raises MessageRefused for what is longer than a message may
        be.
        """
        line = call_message(id, arguments, self.functions).encode()
        self._check_size(len(line))
        self.send(line)

    def invoke_all(self, ids: Iterable[int], *arguments: Any) -> None:
        """Invoke several functions of the peer, like ``invoke``; arguments are encoded once, and no
        functions.
        """
        tail = invocation_tail(arguments)
        self._check_size(len(tail))
        for id in ids:
            if not self.is_open:
                return
            self.send(invocation_line(id, tail))

    def _check_size(self, size: int) -> None:
        if size + PACKET_HEAD_BYTES > self.limits.message_bytes:
            reason = (
                f"it takes {size + PACKET_HEAD_BYTES} bytes on the wire; at most"
                f" {self.limits.message_bytes} are allowed"
            )
            raise MessageRefused(reason=reason)

    def send(self, line: bytes, on_sent: Callable[[], None] | None = None) -> None:
        """Send a line, alone in its packet; ``on_sent`` is called once it was sent to the peer."""
        if self._open:
            self.work.send_buffer.put(b"%b1%b" % (self._channel.encode("ascii"), line), on_sent)

    def send_error(self, callback: DnodeCallbackRef | None, error: BusError) -> None:
        """A call failed: send the error to its callback, or without one to the listeners of
        ``error``.
        """
        if not error_codec.is_shown_to_peers(error):
            log.warning("federation: %s", error)
        if callback is not None:
            self.send(
                call_message(
                    callback.id, [error_codec.error_to_wire(error)], self.functions
                ).encode()
            )
        else:
            self.emit_error(error_codec.error_event_text(error))

    # -- tasks -------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        """Run ``work`` as long as the channel is open; an error in it ends the channel."""
        task = asyncio.create_task(self._run_guarded(work), name=f"busmq: {what}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(
            lambda _: work.close()
        )  # cancelled before its first step, it would complain
        return task

    async def _run_guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except WireError as error:
            self._on_unreadable(error)
        except BusError as error:
            self.send_error(None, error)
        # A fault of ours in one channel must not end the server
        except Exception as error:  # noqa: BLE001
            self._on_defect(error)

    def _on_unreadable(self, error: WireError) -> None:
        log.warning("federation: %s: %s", self.identity.name, error)
        self.close()

    def _on_defect(self, error: Exception) -> None:
        log.error(
            "federation: a channel of %s failed and is closed", self.identity.name, exc_info=error
        )
        self.close()

    def count_begun_call(self, size: int) -> None:
        """A call of so many bytes is in work."""
        if self._open:
            self._messages += 1
            self._bytes += size
            self.work.count_begun_call(size)

    def _set_partial_bytes(self, size: int) -> None:
        """Note that ``size`` bytes belong to a line that is not complete."""
        more, self._partial_bytes = size - self._partial_bytes, size
        self.work.add_partial_bytes(more)

    def count_finished_call(self, size: int) -> None:
        """A call of ``size`` bytes is finished."""
        if self._open:
            self._messages -= 1
            self._bytes -= size
            self.work.count_finished_calls(1, size)
