"""The few bytes of RESP that the embedded servers need to be set up and asked for their health.

Not a client library: one connection per command, blocking. The package's Redis client lives in ``redis_io/``.
"""

from __future__ import annotations

import socket
from typing import BinaryIO

Reply = str | int | None | list["Reply"]


class ErrorReply(RuntimeError):
    """Redis answered with an error; str is its text, as in ``NOAUTH Authentication required.``"""


def ask(port: int, *words: str | int | bytes, password: str | None, timeout_s: float) -> Reply:
    """Send one command to 127.0.0.1 and decode its reply.

    Bulk strings become str; bytes that are not UTF-8 survive as surrogates. ConnectionError when the server is unreachable, silent for
    ``timeout_s`` or hangs up; ErrorReply (a RuntimeError) when it refuses.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as link, link.makefile("rb") as replies:
            if password is not None:
                link.sendall(encode("AUTH", password))
                decode(replies)
            link.sendall(encode(*words))
            return decode(replies)
    except TimeoutError as error:
        raise ConnectionError(f"127.0.0.1:{port} did not answer {words[0]!r} within {timeout_s} s") from error


def encode(*words: str | int | bytes) -> bytes:
    """One command as an array of bulk strings."""
    parts = [word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogateescape") for word in words]
    return b"".join([b"*%d\r\n" % len(parts), *(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)])


def decode(replies: BinaryIO) -> Reply:
    """Read exactly one reply. An error inside an array becomes a str, because the rest of the array must still be read."""
    reply = _read(replies)
    if isinstance(reply, ErrorReply):
        raise reply
    return reply


def _read(replies: BinaryIO) -> Reply | ErrorReply:
    line = replies.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("the server hung up before its reply was complete")
    kind, rest = line[:1], line[1:-2].decode("utf-8", "surrogateescape")
    if kind == b"+":
        return rest
    if kind == b"-":
        return ErrorReply(rest)
    if kind == b":":
        return int(rest)
    if kind not in (b"$", b"*"):
        raise ConnectionError(f"not a RESP2 reply: {line!r}")
    size = int(rest)
    if size < 0:
        return None
    if kind == b"*":
        return [str(item) if isinstance(item, ErrorReply) else item for item in (_read(replies) for _ in range(size))]
    body = replies.read(size + 2)
    if len(body) < size + 2:
        raise ConnectionError("the server hung up before its reply was complete")
    return body[:-2].decode("utf-8", "surrogateescape")
