"""A queue object on a server that speaks busmq's own protocol only: looking at messages, and
removing them, in runs that end by themselves.

Rule 1. npm's server dies of what it does not expect (protocol 5.10): ``error`` is listened to
        first, and nothing but ``exists`` is called before attach, which happens once.
Rule 2. There is one consumption at a time; the next begins when all requests of the last one to
        Redis are answered. An object on which that is not known is closed.
Rule 3. A consumption that removes is reliable: messages beyond its end are put back (protocol 1.4,
        ACK with restore).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from busmq_spark.errors import BusError, FederationLost, LinkLost
from busmq_spark.federation.client.remote_object_connection import RemoteObjectConnection
from busmq_spark.federation.client.web_socket_pool import WebSocketPool
from busmq_spark.federation.npm_wire.creation_message import make_creation
from busmq_spark.redis_io.loop_timeout import LoopTimeout

ANSWER_TIMEOUT_S = 10.0
"""A server that has not sent an answer, or a message that it has, for so long counts as lost."""
QUIET_BEFORE_COUNT_S = 0.25
"""After so long without an event the server is asked whether it has more: a consumption of an empty
queue waits for pushes, without an event.
"""


class RemoteNpmQueue:
    """Every method raises FederationLost when the object is lost or the server reports an error;
    then ``is_over`` is true.
    """

    def __init__(self, pool: WebSocketPool) -> None:
        self.located = self.attached = False
        """Whether ``exists`` was asked, after which fields may be read; whether messages may be,
        and fields be written.
        """
        self.url = pool.target.url
        self._pool = pool
        self._remote: RemoteObjectConnection
        self._why: FederationLost | None = None
        self._happened = asyncio.Event()
        self._existed: bool | None = None
        self._consuming: bool | None = None
        self._messages: list[tuple[int, str]] = []
        self._steps = 0

    @classmethod
    async def open(
        cls, pool: WebSocketPool, queue: str, patience_s: float, *, texts: bool
    ) -> RemoteNpmQueue:
        """``texts``: whether to receive messages; without it the server does not send those that
        are removed.
        """
        made = cls(pool)
        try:
            async with LoopTimeout(patience_s):
                creation = make_creation("queue", queue)
                made._remote = await pool.create_remote(
                    creation, lambda _, why: made._on_lost(str(why.details.get("reason", why)))
                )
        except TimeoutError:
            pool.abort_connections()
            raise (
                pool.last_error
                if isinstance(pool.last_error, FederationLost)
                else FederationLost(url=made.url, reason="no connection in good time")
            ) from None
        on = made._remote.on
        on("error", made._on_error)
        on("attached", made._on_attached)
        on("consuming", made._on_consuming)
        if texts:
            on("message", made._on_message)
        return made

    @property
    def is_over(self) -> bool:
        """Whether it is of no more use."""
        return self._why is not None or self._remote.over

    def close(self) -> None:
        """The server detaches the object."""
        self._on_lost("the queue was let go of here")
        self._remote.close()

    async def read_metadata(self) -> dict[str, str]:
        """The metadata; nothing where there is no such queue, or only a stub that says it is
        elsewhere (protocol 1.11).
        """
        if not self.located:
            await self._call_for_result("exists")
            self.located = True
        found = await self._call_for_result("metadata")
        return found if isinstance(found, dict) and found.get("ttl") else {}

    async def attach(self, ttl_s: int, maxsize: int = 0) -> bool:
        """Whether the queue existed; else it does now."""
        self._remote.call_without_reply("attach", {"ttl": ttl_s, "maxsize": maxsize})
        await self._wait_for_end(lambda: self._existed is not None, self._is_never_stuck)
        self.located = self.attached = True
        assert self._existed is not None
        return self._existed

    async def set_metadata(self, **fields: str) -> None:
        """Set some metadata."""
        await self._call_for_result("metadata", fields)

    async def count_messages(self) -> int:
        """Return the number of stored messages."""
        return int(await self._call_for_result("count"))

    async def peek(self, position: int, most: int = 1) -> list[tuple[int, str]]:
        """Ids and texts of ``most`` messages from a position on, or of all that are left there.
        Nothing is removed.
        """
        self._messages = []

        async def is_at_end() -> bool:
            return await self.count_messages() <= position + len(self._messages)

        await self._consume({"remove": False, "index": position, "max": most}, is_at_end)
        return self._messages

    async def remove(self, many: int, last: int) -> None:
        """Remove ``many`` messages from the head, but none with an id above ``last``."""
        left = many

        async def is_at_end() -> bool:
            nonlocal left
            self._steps += (now := await self.count_messages()) != left
            left = now
            return now == 0

        if many:
            await self._consume({"reliable": True, "last": last, "max": many}, is_at_end)
        await self._consume({"reliable": True, "last": last, "max": 0}, self._is_never_stuck)
        await self.count_messages()  # goes the same way after it: now it is done

    async def push(self, text: str) -> int | None:
        """Push a message; its id, or None when the queue is full."""
        found = await self._call_for_result("push", text)
        return None if found is None else int(found)

    # -- inside ------------------------------------------------------------------------------------

    async def _call_for_result(self, method: str, *args: Any) -> Any:
        self._raise_if_lost()
        try:
            async with LoopTimeout(ANSWER_TIMEOUT_S):
                found = await self._remote.call_for_result(method, *args)
        except TimeoutError:
            # The other queues are better off with another connection, too
            self._pool.abort_connections()
            raise self._lost_error(f"no answer to {method} within {ANSWER_TIMEOUT_S:g} s") from None
        except LinkLost:
            raise
        except BusError as error:  # the server's Redis is unreachable, or full
            raise self._lost_error(f"{method}: {error}") from None
        self._raise_if_lost()
        return found[0] if found else None

    async def _consume(self, options: dict[str, Any], stuck: Callable[[], Awaitable[bool]]) -> None:
        """Until the server says that it has ended, or ``stuck`` says that nothing is left."""
        self._raise_if_lost()
        self._consuming = None
        try:
            self._remote.call_without_reply("consume", options)
            if not await self._wait_for_end(lambda: self._consuming is False, stuck):
                self._remote.call_without_reply("stop")
                await self._wait_for_end(lambda: self._consuming is False, self._is_never_stuck)
                await self.count_messages()  # its requests to Redis are answered before this
        except BaseException:
            if not self.is_over:
                self.close()
            raise

    async def _wait_for_end(
        self, done: Callable[[], bool], stuck: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Whether it came to its end."""
        loop = asyncio.get_running_loop()
        until, seen = loop.time() + ANSWER_TIMEOUT_S, self._steps
        while True:
            self._raise_if_lost()
            if done():
                return True
            self._happened.clear()
            try:
                async with asyncio.timeout(QUIET_BEFORE_COUNT_S):
                    await self._happened.wait()
            except TimeoutError:
                if await stuck():
                    return done()
            if self._steps != seen:
                until, seen = loop.time() + ANSWER_TIMEOUT_S, self._steps
            elif loop.time() > until:
                self._pool.abort_connections()
                raise self._lost_error(f"nothing more within {ANSWER_TIMEOUT_S:g} s")

    async def _is_never_stuck(self) -> bool:
        return False

    def _raise_if_lost(self) -> None:
        if self._why is not None:
            raise self._why

    def _lost_error(self, reason: str) -> FederationLost:
        self._on_lost(reason)
        self._remote.close()
        assert self._why is not None
        return self._why

    def _on_lost(self, reason: str) -> None:
        self._why = self._why or FederationLost(url=self.url, reason=reason)
        self._happened.set()

    def _on_error(self, *found: Any) -> None:
        self._on_lost(f"it says: {str(found[0])[:300] if found else 'an error'}")
        self._remote.close()

    def _on_attached(self, existed: bool) -> None:
        self._existed = existed
        self._count_step()

    def _on_consuming(self, state: bool) -> None:
        self._consuming = state
        self._count_step()

    def _on_message(self, text: str, id: int | str) -> None:
        self._messages.append((int(id), text))
        self._count_step()

    def _count_step(self) -> None:
        self._steps += 1
        self._happened.set()
