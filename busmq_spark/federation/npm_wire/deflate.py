"""Compressed messages (permessage-deflate, RFC 7692), as npm busmq sends them.

Windows of 4 KiB and the fastest level: zlib takes 43 KiB for a connection, 71 KiB where the peer chooses its own window. A message is bounded by its
length once it is read, so a kilobyte that stands for a megabyte is a message of a megabyte.
"""

from __future__ import annotations

from typing import Any

from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory, ServerPerMessageDeflateFactory

COMPRESSED_PIECE_BYTES = 16 * 1024
"""Bytes that are decompressed at once, into 16.5 MiB at most."""
_WINDOW_BITS = 12
_COMPRESS_SETTINGS: dict[str, Any] = {"memLevel": 5, "level": 1}


def client_deflate() -> ClientPerMessageDeflateFactory:
    """What a client asks for; a server that does not know it goes without."""
    return ClientPerMessageDeflateFactory(
        server_max_window_bits=_WINDOW_BITS, client_max_window_bits=_WINDOW_BITS, compress_settings=_COMPRESS_SETTINGS
    )


def server_deflate() -> ServerPerMessageDeflateFactory:
    """What a server agrees to with a client that asks."""
    return ServerPerMessageDeflateFactory(
        server_max_window_bits=_WINDOW_BITS, client_max_window_bits=_WINDOW_BITS, compress_settings=_COMPRESS_SETTINGS
    )
