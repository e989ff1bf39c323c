"""A web socket that counts what passes, and how much may be on its way (socket.py).

Rule 1. Every byte that comes, and every byte that the operating system takes for the server, is a
        sign of life: also a part of a message.
Rule 2. Bytes in the buffers of the operating system and of machines in between are not seen. So a
        silent server has as long as that takes over a slow link.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from websockets.asyncio.client import ClientConnection

MAX_WAITING_BYTES = 256 * 1024
"""Bytes that wait here before the objects wait, each for its turn: so much an object that comes
later waits for at most.
"""
MAX_UNANSWERED_BYTES = 1024 * 1024
"""Bytes of calls of one socket that are not answered, whatever the number of its objects; one call
may be larger.
"""
SLOWEST_LINK_BYTES_PER_S = 32 * 1024
"""Bytes per second of the slowest link that we wait for when nothing is seen of what passes on
it.
"""
LARGE_WRITE_BYTES = 64 * 1024
WRITE_PIECE_BYTES = 64 * 1024


class ByteCountingWebSocket(ClientConnection):
    """``received`` and ``written`` are bytes since the handshake, ``partial`` those that have come
    after the last complete message.
    """

    received = written = partial = 0
    on_writable: Callable[[], None] | None = None

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self.partial += len(data)
        super().data_received(data)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.on_writable is not None:
            self.on_writable()

    def write(self, packets: list[bytes]) -> None:
        """In one piece. It may be that they are lost with the connection."""
        for packet in packets:
            self.protocol.send_binary(packet)
        if not self.transport.is_closing():  # asyncio would complain of each
            data = b"".join(self.protocol.data_to_send())
            self.written += len(data)
            self.transport.write(data)

    @property
    def bytes_passed(self) -> tuple[int, int]:
        """Return the bytes that have come, and the bytes that the operating system has taken: they
        change as long as bytes pass.
        """
        return self.received, self.written - self.transport.get_write_buffer_size()


class SendWindow:
    """The bytes that wait and are under way on one socket, and the senders that wait for room, each
    in its turn.
    """

    def __init__(self) -> None:
        self.waiting = self.under_way = 0
        self._turns: dict[Callable[[], None], None] = {}
        self._soon: asyncio.Handle | None = None

    @property
    def has_room(self) -> bool:
        """Whether one more call may be made."""
        return self.waiting < MAX_WAITING_BYTES and self.under_way < MAX_UNANSWERED_BYTES

    def call_when_room(self, go_on: Callable[[], None]) -> None:
        """Call it once when there is room, after those that wait already."""
        self._turns[go_on] = None
        self.resume_if_room()

    def resume_if_room(self) -> None:
        """Call those that wait, if there is room."""
        if self._turns and self._soon is None and self.has_room:
            self._soon = asyncio.get_running_loop().call_soon(self._call_waiting)

    def reset(self) -> None:
        """The socket is gone; who waited waits for another."""
        self.waiting = self.under_way = 0
        self._turns.clear()

    def _call_waiting(self) -> None:
        self._soon = None
        for go_on in tuple(self._turns):
            if not self.has_room:
                return
            self._turns.pop(go_on, None)
            go_on()


class PongConfirmationTracker:
    """The proofs of pongs: bytes that were sent before a ping have arrived when its pong comes."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, float]] = deque()
        self._before = float("-inf")

    def add_pong(self, at: float, now: float) -> None:
        """The pong of a ping that was sent at ``at``."""
        self._times.append((at, now))

    def proven_send_time(self, since: float) -> float:
        """Return a time: bytes that were sent before it had arrived at ``since``."""
        while self._times and self._times[0][1] <= since:
            self._before = self._times.popleft()[0]
        return self._before
