"""A link that is far away, in a process of its own:
``python -m tests.benchmarks.far_link PORT ROUND_TRIP_S``.

It prints the port that leads to PORT. Whatever passes arrives half a round trip later; any number
of bytes may be on their way.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import deque
from typing import cast


class Late(asyncio.Protocol):
    """One end of a connection: what it gets, the ``other`` end sends ``delay_s`` later."""

    other: Late

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[bytes] = deque()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )

    def data_received(self, data: bytes) -> None:
        self._waiting.append(data)
        self._loop.call_later(self._delay_s, self._pass)

    def eof_received(self) -> None:
        self._loop.call_later(self._delay_s, self.other.transport.close)

    def connection_lost(self, error: Exception | None) -> None:
        self._loop.call_later(self._delay_s, self.other.transport.close)

    def _pass(self) -> None:
        self.other.transport.write(self._waiting.popleft())


async def link(target: int, delay_s: float) -> None:
    """Until the standard input ends."""
    loop = asyncio.get_running_loop()

    async def accepted(here: socket.socket) -> None:
        there = socket.create_connection(("127.0.0.1", target))
        near, far = Late(delay_s), Late(delay_s)
        near.other, far.other = far, near
        await loop.create_connection(lambda: far, sock=there)
        await loop.connect_accepted_socket(lambda: near, here)

    async def accept(listener: socket.socket) -> None:
        while True:
            here, _ = await loop.sock_accept(listener)
            await accepted(here)

    with socket.create_server(("127.0.0.1", 0), backlog=1_024) as listener:
        listener.setblocking(False)
        print(listener.getsockname()[1], flush=True)
        accepting = asyncio.create_task(accept(listener))
        await asyncio.to_thread(sys.stdin.read)
        accepting.cancel()


if __name__ == "__main__":
    asyncio.run(link(int(sys.argv[1]), float(sys.argv[2]) / 2))
