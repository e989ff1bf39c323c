"""The few bytes of RESP that the embedded servers need to be set up and asked for their health.

Not a client library: one connection per command, blocking. The package's Redis client lives in
``redis_io/``.
"""

from __future__ import annotations

import socket

import hiredis

Reply = str | int | None | list["Reply"]


class RedisReplyError(RuntimeError):
    """Redis answered with an error; str is its text, as in ``NOAUTH Authentication required.``"""


def send_command(
    port: int, *words: str | int | bytes, password: str | None, timeout_s: float
) -> Reply:
    """Send one command to 127.0.0.1 and decode its reply.

    Bulk strings become str; bytes that are not UTF-8 survive as surrogates. ConnectionError when
    the server is unreachable, silent for ``timeout_s`` or hangs up; RedisReplyError (a
    RuntimeError) when it refuses.
    """
    asked = [("AUTH", password)] if password is not None else []
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as link:
            reader = hiredis.Reader(ConnectionError, RedisReplyError, "utf-8", "surrogateescape")
            for each in (*asked, words):
                parts = tuple(
                    word if isinstance(word, bytes) else str(word).encode(errors="surrogateescape")
                    for word in each
                )
                # It takes a tuple of any length
                link.sendall(hiredis.pack_command(parts))  # type: ignore[arg-type]
                while (reply := reader.gets()) is False:
                    if not (data := link.recv(65_536)):
                        raise ConnectionError("the server hung up before its reply was complete")
                    reader.feed(data)
                if isinstance(reply, RedisReplyError):
                    raise reply
    except TimeoutError as error:
        raise ConnectionError(
            f"127.0.0.1:{port} did not answer {words[0]!r} within {timeout_s} s"
        ) from error
    return _error_to_text(reply)


def _error_to_text(reply: object) -> Reply:
    """An error inside an array becomes a str."""
    if isinstance(reply, list):
        return [_error_to_text(item) for item in reply]
    return str(reply) if isinstance(reply, RedisReplyError) else reply  # type: ignore[return-value]
