"""The part that a provider and a requester share: the service as their owner, the clock of its
server, and messages that are read with retries.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, get_args

from busmq_spark.bus.emitter import Emitter
from busmq_spark.bus.handle import Handle
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.errors import BusError
from busmq_spark.errors.foreign import error_text, exc_info
from busmq_spark.queue.keys import check_name
from busmq_spark.redis_io.retry import Pauses

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext
    from busmq_spark.bus.queue.base_consumption import ConsumptionRoom
    from busmq_spark.bus.queue.base_queue import BaseQueue
    from busmq_spark.bus.queue.consume import Consumption
    from busmq_spark.queue.message import Message

CLOCK_VALID_S = 60.0
"""Seconds for which one reading of the server's clock is valid."""
CLOCK_JUMP_S = 1.0
"""A clock of ours that moved by so much against the other one was set: the server is asked
again.
"""


ServiceEvent = Literal["serving", "connected", "disconnect", "request", "error"]
log = logging.getLogger("busmq_spark")


class BaseService(Handle, Emitter[ServiceEvent]):
    """A service, as its provider and its requester see it."""

    events: tuple[ServiceEvent, ...] = get_args(ServiceEvent)

    def __init__(self, bus: BusContext, name: str) -> None:
        super().__init__(bus.spawn)
        self.bus, self.name = bus, check_name("service", name)
        self.room: ConsumptionRoom | None = None
        """Room that is asked for before requests and replies are taken."""

    def make_queue(self, name: str) -> Queue:
        """Return a queue for requests or replies; over federation it is one of the other bus."""
        return Queue(self.bus, name)

    def report_failure(self, error: BaseException) -> None:
        """Report an error of a handler: to the handlers of ``error``, else to the log, with its
        stack trace.
        """
        if self._handlers.get("error"):
            self._emit("error", error)
        else:
            log.error(
                "service %r: a handler failed: %s",
                self.name,
                error_text(error),
                exc_info=exc_info(error),
            )


class ServerClock:
    """Asks the server rarely, and counts on from there."""

    def __init__(self, queue: BaseQueue) -> None:
        self._queue = queue
        self._seen: tuple[float, float, float] | None = None

    async def now_ms(self) -> float:
        """Milliseconds since 1970. Raises LinkLost."""
        steady, wall = asyncio.get_running_loop().time(), time.time()
        if self._seen is not None:
            server_ms, steady_then, wall_then = self._seen
            passed = steady - steady_then
            if passed < CLOCK_VALID_S and abs(wall - wall_then - passed) < CLOCK_JUMP_S:
                return server_ms + passed * 1000
        self._seen = (await self._queue.server_ms(), steady, wall)
        return self._seen[0]


async def next_message_with_retries(
    consumption: Consumption, report: Callable[[BusError], None]
) -> Message | None:
    """The next message, None at the end. A refusal of Redis (out of memory, say) is reported, and
    the call is repeated after a pause.
    """
    pauses = Pauses(0.2, 5.0)
    while True:
        try:
            return await anext(consumption)
        except StopAsyncIteration:
            return None
        except BusError as error:
            report(error)
            await asyncio.sleep(pauses.next_s())
