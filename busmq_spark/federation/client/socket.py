"""One hot web socket to a federation server: dialled again whenever it is lost, many lines on it (protocol 5.1 to 5.3).

Rule 1. Nothing is sent twice: what was under way when the socket broke is for each line's object to judge.
Rule 2. Sending never waits. What is under way is bounded by those who push; a server that does not read is found by the heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.protocol import State

from busmq_spark.errors import BusError, FederationLost, FederationRefused, WireError
from busmq_spark.federation.handshake import OURS
from busmq_spark.federation.mux import Packet
from busmq_spark.federation.quiet import WIRE_LOG

if TYPE_CHECKING:
    from busmq_spark.federation.client.line import Line
    from busmq_spark.federation.client.target import Target

BEAT_S = 10.0
PONG_S = 10.0
"""A server that owes a pong for so long is gone."""
OPEN_S = 10.0
PAUSES_S = (0.05, 5.0)
"""Shortest and longest pause between two tries to dial."""
MOST_BYTES = 100 * 1024 * 1024
"""Largest message taken, as by Node."""
log = logging.getLogger("busmq_spark")


def pause_s(attempt: int) -> float:
    """How long to wait after so many failures: longer and longer, and never in step with others."""
    least, most = PAUSES_S
    return float(min(most, least * 2 ** min(attempt, 16)) * random.uniform(0.5, 1))  # noqa: S311  # spreads load, guards nothing


class Socket:
    """Runs from ``run`` until cancelled or refused. ``changed`` is called when it opens, when it is lost and when it is refused."""

    def __init__(self, target: Target, spawn: Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]], changed: Callable[[], None]) -> None:
        self.target = target
        self.why: BusError = self._lost("it was not reached yet")
        """What happened last; FederationRefused is final."""
        self._spawn, self._changed = spawn, changed
        self._socket: ClientConnection | None = None
        self._lines: dict[str, Line] = {}
        self._outbox: list[bytes] = []

    @property
    def ours(self) -> bool:
        """Whether the server is of our kind, and not npm's."""
        response = self._socket.response if self._socket is not None else None
        return response is not None and OURS in response.headers

    @property
    def open(self) -> bool:
        """Whether lines can be opened now."""
        return self._socket is not None

    async def run(self) -> None:
        """Dial, read, and dial again."""
        attempt = 0
        while True:
            try:
                socket = await self._dial()
            except FederationRefused as error:
                self.why = error
                self._changed()
                return
            except FederationLost as error:
                self.why = error
                self._changed()
                attempt += 1
                await asyncio.sleep(pause_s(attempt))
                continue
            began = asyncio.get_running_loop().time()
            await self._live(socket)
            # One that is closed again and again at once is not hammered at.
            attempt = 0 if asyncio.get_running_loop().time() - began > 1 else attempt + 1
            await asyncio.sleep(pause_s(attempt))

    def hang_up(self) -> None:
        """Nobody seems to be there: dial again."""
        if self._socket is not None:
            self._socket.transport.abort()

    async def close(self) -> None:
        """Say goodbye, if anybody listens."""
        if self._socket is not None:
            self._flush()
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._socket.close()

    def add(self, line: Line) -> None:
        """Packets with its id are for this line."""
        self._lines[line.id] = line

    def remove(self, line: Line) -> None:
        """Not any more: what still comes is ignored."""
        self._lines.pop(line.id, None)

    def send(self, packet: bytes) -> None:
        """In the order of the calls. A socket that is lost meanwhile loses it; its lines are told."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(packet)

    # -- inside -----------------------------------------------------------------------------------------------------------------------------

    async def _dial(self) -> ClientConnection:
        options: dict[str, Any] = {} if self.target.trust is None else {"ssl": self.target.trust}
        try:
            return await connect(
                self.target.dial,
                compression=None,
                open_timeout=OPEN_S,
                ping_interval=None,
                close_timeout=1,
                max_size=MOST_BYTES,
                logger=WIRE_LOG,
                **options,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            if status == 401:
                raise FederationRefused(url=self.target.url, reason="it does not know the secret (401)") from None
            raise self._lost(f"it answered with HTTP status {status}; is the path right?") from None
        except TimeoutError:
            raise self._lost(f"no handshake within {OPEN_S:.0f} s; npm servers are silent when the path is wrong") from None
        except (OSError, InvalidHandshake, EOFError) as error:
            raise self._lost(str(error) or type(error).__name__) from None

    async def _live(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._outbox.clear()
        beat = self._spawn(self._beat(socket), "the heartbeat of a federation link")
        reason = "the link was closed"
        try:
            self._changed()
            while True:
                message = await socket.recv()
                self._received(message if isinstance(message, bytes) else message.encode())
        except ConnectionClosed as closed:
            reason = f"the link was lost ({closed})"
        finally:
            beat.cancel()
            self._socket = None
            socket.transport.abort()
            self._drop(self._lost(reason))

    def _received(self, message: bytes) -> None:
        try:
            packet = Packet.decode(message)
        except WireError as error:
            log.warning("%s", error)
            return
        line = self._lines.get(packet.channel)
        if line is None:
            return  # late, for a line that is closed
        if packet.body is None:
            self.remove(line)
            line.lost(self._lost("the server closed the channel"))
            return
        try:
            line.received(packet.body)
        except WireError as error:
            line.close()
            line.lost(self._lost(f"it does not speak the protocol: {error}"))

    def _drop(self, why: FederationLost) -> None:
        self.why = why
        lines, self._lines = self._lines, {}
        self._outbox.clear()
        self._changed()
        for line in lines.values():
            line.lost(why)

    async def _beat(self, socket: ClientConnection) -> None:
        """npm servers answer pings, and so does everybody; one that does not has gone without a word."""
        loop = asyncio.get_running_loop()
        with suppress(ConnectionClosed):
            while True:
                await asyncio.sleep(BEAT_S)
                for line in tuple(self._lines.values()):
                    line.check(loop.time())
                try:
                    async with asyncio.timeout(PONG_S):
                        await (await socket.ping(b"hb"))
                except TimeoutError:
                    socket.transport.abort()
                    return

    def _flush(self) -> None:
        packets, self._outbox = self._outbox, []
        socket = self._socket
        if socket is None or socket.protocol.state is not State.OPEN:
            return  # whoever reads finds that it is lost
        for packet in packets:
            socket.protocol.send_binary(packet)
        socket.send_data()

    def _lost(self, reason: str) -> FederationLost:
        return FederationLost(url=self.target.url, reason=reason)
