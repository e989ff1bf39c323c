"""For background loops that no caller awaits: an error reply of Redis must not end the bus, and no
caller would catch it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from busmq_spark.errors import BusError
from busmq_spark.redis_io.retry import Pauses

if TYPE_CHECKING:
    from busmq_spark.bus.queue.consume import Consumption
    from busmq_spark.queue.message import Message


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
