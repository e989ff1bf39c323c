"""Workers of several queues as one: in fair turns, under one limit.

async with bus.workers(concat, split, limit=8) as workers:
    ...
    await workers.drain(timeout_s=30)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from busmq_spark.arguments import show
from busmq_spark.bus.handle import Handle
from busmq_spark.bus.jobs.fair_slots import FairSlots
from busmq_spark.bus.jobs.job_consumer_group import check_limit
from busmq_spark.errors import ConfigError

if TYPE_CHECKING:
    from busmq_spark.bus.jobs.worker import Worker
    from busmq_spark.bus.topics.topic_worker import TopicWorker


class WorkerGroup(Handle):
    """Begins and ends its workers together."""

    def __init__(self, workers: Sequence[Worker | TopicWorker], limit: int) -> None:
        check_limit(limit)
        if not all(hasattr(each, "slots") for each in workers):
            raise ConfigError(
                reason=(
                    f"the workers are {show(workers)}; expected what jobs.worker(...) made of"
                    " functions"
                )
            )
        if not workers or len(set(workers)) < len(workers):
            raise ConfigError(
                reason=f"the workers are {list(workers)}; expected one or more, each once"
            )
        self._workers, self._stack = workers, AsyncExitStack()
        slots = FairSlots(limit)
        for each in workers:
            each.slots = slots

    def __repr__(self) -> str:
        return f"Workers({', '.join(map(repr, self._workers))})"

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for each in self._workers:
                await stack.enter_async_context(each)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def run(self) -> None:
        """Work until all have stopped, or until this is cancelled."""
        async with self:
            await asyncio.gather(*(each.wait_stopped() for each in self._workers))

    async def stop(self) -> None:
        """See Worker.stop."""
        await asyncio.gather(*(each.stop() for each in self._workers))

    async def pause(self, timeout_s: float | None = None) -> None:
        """See Worker.pause; all pause at once."""
        await asyncio.gather(*(each.pause(timeout_s) for each in self._workers))

    async def resume(self) -> None:
        """See Worker.resume."""
        for each in self._workers:
            await each.resume()

    async def drain(self, timeout_s: float | None = None) -> None:
        """See Worker.drain."""
        await self.pause(timeout_s)
        await self.stop()
