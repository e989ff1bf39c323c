"""Whether bytes leave for a peer: any that do are progress, however large the message is that they
belong to.
"""

from __future__ import annotations

import fcntl
import struct
import termios
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection


def unsent_bytes(socket: ServerConnection) -> tuple[int, int]:
    """Bytes that wait in this process, and in the operating system until the peer's has confirmed
    them (0 where it does not say).
    """
    transport = socket.transport
    below = getattr(socket, "tcp", None) or transport  # under TLS: encrypted bytes wait there
    waiting: int = transport.get_write_buffer_size() + (
        0 if below is transport else below.get_write_buffer_size()
    )
    found = transport.get_extra_info("socket")
    try:
        kernel = (
            struct.unpack("i", fcntl.ioctl(found.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0]
            if found is not None
            else 0
        )
    except (OSError, ValueError):  # closed meanwhile, or a system that cannot say
        kernel = 0
    return waiting, kernel


def is_readable(found: Any) -> bool:
    """Whether the operating system holds bytes of a socket that were not read yet."""
    try:
        return bool(struct.unpack("i", fcntl.ioctl(found.fileno(), termios.FIONREAD, b"\0" * 4))[0])
    except (OSError, ValueError, AttributeError):  # closed meanwhile, or a system that cannot say
        return False


class SendStallMeter:
    """Seconds without any, of one socket; to be asked from time to time."""

    def __init__(self, now: float) -> None:
        self._left = (0, 0)
        self._since = now

    def stalled_s(self, left: tuple[int, int], now: float) -> float:
        """Return the seconds for which nothing has left although something waits in this process.
        ``left`` is what :func:`unsent_bytes` says now.
        """
        if left != self._left or not left[0]:
            self._left, self._since = left, now
        return now - self._since
