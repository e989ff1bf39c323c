"""Keeps one remote object on a line: a new one when the old is lost, and on it the object's state before anything else.

Rule 1. One line at a time. What an old one still says is not heard.
Rule 2. An object that is ``wanted`` comes back however long it takes; any other gets a line when it has something to ask.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from busmq_spark.errors import BusError, FederationLost, FederationRefused
from busmq_spark.federation.client.line import Line
from busmq_spark.federation.client.pool import Pool
from busmq_spark.federation.client.socket import pause_s
from busmq_spark.federation.creation import Creation
from busmq_spark.topology.endpoint import PATIENCE_S  # how long a call waits for an unreachable server, as long as for Redis

LOOK_S = 0.25
END_S = 1.5
"""How long the server may take to say that an object has ended."""
IDLE_S = 30.0
"""How long an object that is neither attached nor subscribed keeps an unused line."""
log = logging.getLogger("busmq_spark")


class Owner(Protocol):
    """The object, as seen by its wire."""

    def wire_lost(self, why: BusError) -> None:
        """The line is gone; a wanted object gets another."""

    def wire_back(self) -> None:
        """A line is there again, with the state on it."""

    def wire_failed(self, error: BusError) -> None:
        """It was refused and will not come back, or what the server said while it came back; then it is tried again."""


class Wire:
    """``restore`` makes a new line what the old one was; it may raise FederationLost."""

    def __init__(
        self,
        pool: Pool,
        creation: Creation,
        spawn: Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]],
        owner: Owner,
        restore: Callable[[Line], Awaitable[None]],
    ) -> None:
        self.wanted = False
        self.line: Line | None = None
        """The line, when everything is restored on it."""
        self._pool, self._creation, self._spawn, self._owner, self._restore = pool, creation, spawn, owner, restore
        self._coming: asyncio.Future[Line] | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting = 0
        self._failed: FederationLost | None = None
        self._idle: asyncio.TimerHandle | None = None

    @property
    def url(self) -> str:
        """Of the server."""
        return self._pool.target.url

    async def up(self) -> Line:
        """The line. Waits as long as a socket to the server is open: much may be under way on it.

        Raises FederationLost when there is none for PATIENCE_S, or tries have failed for as long; FederationRefused, and what restoring raises.
        """
        if self.line is not None:
            return self.line
        coming = self._come()
        self._waiting += 1
        try:
            await self._patiently(coming)
            return await asyncio.shield(coming)
        finally:
            self._waiting -= 1
            self._give_up()

    async def _patiently(self, coming: asyncio.Future[Line]) -> None:
        clock = asyncio.get_running_loop().time
        began = seen = clock()
        while not coming.done():
            await asyncio.wait({coming}, timeout=LOOK_S)
            now = clock()
            if self._pool.alive:
                seen = now
            if self._failed is not None and now - began > PATIENCE_S:
                raise self._failed
            if now - seen > PATIENCE_S:
                raise self._away()

    def begin(self) -> None:
        """Open a line, now and whenever it is lost, without waiting for it."""
        self.wanted = True
        self._come()

    async def ask(self, method: str, *args: Any, again: bool = True) -> list[Any]:
        """What the callback gets behind the error. A call that changes nothing is repeated when the link breaks; ``again=False`` is for others."""
        until = asyncio.get_running_loop().time() + PATIENCE_S
        self._use()
        while True:
            line = await self.up()
            try:
                return await line.ask(method, *args)
            except FederationLost:
                if not again or asyncio.get_running_loop().time() > until:
                    raise

    async def finish(self, method: str, event: str) -> None:
        """Call the method that ends the object and wait for its event, if there is a line: closing the line ends the object anyhow."""
        if (line := self.line) is None:
            return
        done = line.expect(event)
        line.call(method)
        try:
            async with asyncio.timeout(END_S):
                await done
        except (TimeoutError, FederationLost) as error:
            log.debug("%r: no word that it is %s: %s", self._owner, event, error)

    def close(self) -> None:
        """Let go of the line; the server detaches the object. A later call opens another."""
        self.wanted = False
        line, self.line = self.line, None
        if line is not None:
            line.close()
        self._give_up()

    def _use(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = None if self.wanted else asyncio.get_running_loop().call_later(IDLE_S, self._unused)

    def _unused(self) -> None:
        if not self.wanted and not self._waiting and self.line is not None and not self.line.busy:
            self.close()

    # -- inside -----------------------------------------------------------------------------------------------------------------------------

    def _come(self) -> asyncio.Future[Line]:
        if self._coming is None:
            self._coming = asyncio.get_running_loop().create_future()
            self._task = self._spawn(self._open(self._coming, back=self.wanted), f"opening a line for {self._owner!r}")
        return self._coming

    async def _open(self, coming: asyncio.Future[Line], *, back: bool) -> None:
        """Until there is a line. ``back``: there was one before, so there may be no caller to raise an error to."""
        attempt = 0
        try:
            while True:
                self._failed = None
                try:
                    line = await self._opened()
                    break
                except FederationLost as error:
                    self._failed = error
                    attempt += 1
                except FederationRefused:
                    raise
                except BusError as error:
                    if not back:
                        raise
                    attempt += 1
                    self._owner.wire_failed(error)
                await asyncio.sleep(pause_s(attempt))
        except BusError as error:
            self._coming = None
            coming.set_exception(error)
            coming.exception()  # retrieved: there may be no waiting caller
            if back:
                self.wanted = False
                self._owner.wire_failed(error)
            return
        except asyncio.CancelledError:
            self._coming = None
            coming.set_exception(FederationLost(url=self.url, reason="the bus was closed"))
            coming.exception()
            raise
        self.line, self._coming = line, None
        coming.set_result(line)
        if back:
            self._owner.wire_back()

    async def _opened(self) -> Line:
        line = await self._pool.line(self._creation, self._lost)
        try:
            await self._restore(line)
        except BaseException:
            line.close()
            raise
        if line.over:
            raise self._away()
        return line

    def _lost(self, line: Line, why: BusError) -> None:
        if line is not self.line:
            return  # it broke while its state was being restored: the restoring task gets the error
        self.line = None
        self._owner.wire_lost(why)
        if self.wanted:
            with suppress(BusError):  # the bus is closed
                self._come()

    def _give_up(self) -> None:
        if self._task is not None and not self._waiting and not self.wanted and self._coming is not None:
            self._task.cancel()
            self._coming = None

    def _away(self) -> BusError:
        why = self._failed or self._pool.why
        return why if isinstance(why, FederationLost) else FederationLost(url=self.url, reason="no answer in good time")
