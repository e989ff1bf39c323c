"""``group.each(handler)``: a handler for each message of a shared group.

async with bus.queue("mail") as mail, mail.group("send", shared=True, tries=5) as group:
    await group.each(send_mail)

Rule 1. A message is acknowledged when the handler has returned. An exception of the handler is a
        try of the message, which comes again, until its tries are used up: then it is a dead letter
        with the reason.
Rule 2. Leases are extended while handlers run. Leases of a process that dies end by themselves.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

from busmq_spark.errors import BusError, ConfigError, Rejected
from busmq_spark.errors.foreign import exc_info
from busmq_spark.groups.shared_group import LeasedMessage

if TYPE_CHECKING:
    from busmq_spark.bus.queue.shared_group import SharedGroup

MessageHandler: TypeAlias = Callable[[LeasedMessage], Any]
"""A coroutine function, or a plain function, which is called in a thread."""
log = logging.getLogger("busmq_spark")


class MessageHandling:
    """A call of ``group.each``."""

    def __init__(
        self, group: SharedGroup, handler: MessageHandler, at_once: int, delay_s: float
    ) -> None:
        if not callable(handler):
            raise ConfigError(
                reason=(
                    f"the handler is {handler!r}; expected a function of one argument, the message"
                )
            )
        # What users give
        if not isinstance(at_once, int) or not 1 <= at_once <= 1000:  # type: ignore[redundant-expr]
            raise ConfigError(
                reason=f"at_once is {at_once!r}; expected a whole number from 1 to 1000"
            )
        self._group, self._handler, self._at_once, self._delay_s = group, handler, at_once, delay_s
        self._threads = ThreadPoolExecutor(at_once, "busmq-each")
        self._running: dict[asyncio.Task[None], LeasedMessage] = {}
        self._runner: asyncio.Task[Any] | None = None
        self._over = False

    async def run(self, most: int | None) -> int:
        """Handle messages until the group stops, or until there were ``most``. Returns how many."""
        handled, self._runner = 0, asyncio.current_task()
        extending = asyncio.create_task(self._extend_leases())
        try:
            async for batch in self._group.batches(most=1):
                for message in batch:
                    self._running[asyncio.create_task(self._handle(message))] = message
                    handled += 1
                if handled == most:
                    break
                await self._wait_for_room(self._at_once - 1)
            await self._wait_for_room(0)
        finally:
            self._over = True
            for task in (extending, *self._running):
                task.cancel()
            self._threads.shutdown(wait=False)
        return handled

    async def _wait_for_room(self, running: int) -> None:
        """Wait until at most so many handlers run. Raises what settling a message raised."""
        while len(self._running) > running or any(task.done() for task in self._running):
            done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                del self._running[task]
                task.result()

    async def _handle(self, message: LeasedMessage) -> None:
        try:
            await self._call(message)
        except Rejected as error:
            await self._group.reject(message, error.details["reason"])
        except BaseException as error:  # whatever the handler raises is a try
            if isinstance(error, asyncio.CancelledError) and self._is_ending():
                raise  # else the handler cancelled itself
            names = (self._group.queue.name, self._group.name, message.id, message.tries)
            log.warning(
                "queue %r, group %r: the handler of message %d failed in try %d",
                *names,
                exc_info=exc_info(error),
            )
            await self._group.retry(message, delay_s=self._delay_s, error=error)
        else:
            await self._group.ack(message)

    def _is_ending(self) -> bool:
        return self._over or (self._runner is not None and self._runner.cancelling() > 0)

    async def _call(self, message: LeasedMessage) -> None:
        if inspect.iscoroutinefunction(self._handler):
            await self._handler(message)
            return
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, self._handler, message
        )
        if inspect.isawaitable(found):
            await found

    async def _extend_leases(self) -> None:
        while True:
            await asyncio.sleep(self._group.lease_s / 3)
            if self._running:
                try:
                    await self._group.extend([*self._running.values()], lease_s=self._group.lease_s)
                except BusError as error:
                    log.warning(
                        "leases of group %r are not extended for now: %s", self._group.name, error
                    )
