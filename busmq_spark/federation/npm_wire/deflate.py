"""Compressed messages (permessage-deflate, RFC 7692), as npm busmq sends them.

Windows of 4 KiB and the fastest level: zlib takes 43 KiB for a connection, 71 KiB where the peer
chooses its own window. A message is bounded by its length once it is read, so a kilobyte that
stands for a megabyte is a message of a megabyte. A server takes messages as they come, and
decompresses each in short steps once there is room.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from websockets.exceptions import ProtocolError
from websockets.extensions.permessage_deflate import (
    ClientPerMessageDeflateFactory,
    PerMessageDeflate,
    ServerPerMessageDeflateFactory,
)
from websockets.frames import Frame, Opcode

MAX_RATIO = 1032
"""A compressed byte stands for so many at most."""
_STEP_BYTES = 64 * 1024
_END_OF_MESSAGE = b"\x00\x00\xff\xff"

_WINDOW_BITS = 12
_COMPRESS_SETTINGS: dict[str, Any] = {"memLevel": 5, "level": 1}


def client_deflate() -> ClientPerMessageDeflateFactory:
    """Return the client's offer of compression; a server that does not know it goes without."""
    return ClientPerMessageDeflateFactory(
        server_max_window_bits=_WINDOW_BITS,
        client_max_window_bits=_WINDOW_BITS,
        compress_settings=_COMPRESS_SETTINGS,
    )


class LazyDeflate(PerMessageDeflate):
    """The extension of one connection, which leaves what it receives compressed."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.received: deque[tuple[bool, bool]] = deque()
        """For each message whose first frame has come: whether it is compressed, and a text."""

    # A part of the interface
    def decode(self, frame: Frame, *, max_size: int | None = None) -> Frame:  # noqa: ARG002
        """Take a frame as it is."""
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self.received.append((frame.rsv1, frame.opcode is Opcode.TEXT))
            return Frame(frame.opcode, frame.data, frame.fin, False, frame.rsv2, frame.rsv3)
        if frame.opcode is Opcode.CONT and frame.rsv1:
            raise ProtocolError("RSV1 bit set in continuation frame")
        return frame

    def inflate(self, data: bytes) -> Iterator[bytes]:
        """A compressed message, piece by piece. Raises ``zlib.error``."""
        if self.remote_no_context_takeover:
            self.decoder = zlib.decompressobj(wbits=-self.remote_max_window_bits)
        for part in (data, _END_OF_MESSAGE):
            rest = part
            while True:
                piece = self.decoder.decompress(rest, _STEP_BYTES)
                rest = self.decoder.unconsumed_tail
                yield piece
                if not rest and len(piece) < _STEP_BYTES:
                    break


class _LazyDeflateFactory(ServerPerMessageDeflateFactory):
    def process_request_params(
        self, params: Sequence[tuple[str, str | None]], accepted_extensions: Sequence[Any]
    ) -> tuple[list[tuple[str, str | None]], PerMessageDeflate]:
        agreed, made = super().process_request_params(params, accepted_extensions)
        lazy = LazyDeflate(
            made.remote_no_context_takeover,
            made.local_no_context_takeover,
            made.remote_max_window_bits,
            made.local_max_window_bits,
            made.compress_settings,
        )
        return list(agreed), lazy


def server_deflate() -> ServerPerMessageDeflateFactory:
    """Return the server's answer to a client that offers compression."""
    return _LazyDeflateFactory(
        server_max_window_bits=_WINDOW_BITS,
        client_max_window_bits=_WINDOW_BITS,
        compress_settings=_COMPRESS_SETTINGS,
    )
