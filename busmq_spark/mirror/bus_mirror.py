"""``bus.mirror(...)``: queues of another data centre here, while the block runs.

async with bus.mirror("wss://eu.example/bus", "orders-*", secret=…) as mirror:
    await mirror.caught_up()
    print(mirror.status())
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from busmq_spark.bus.handle import Handle
from busmq_spark.errors import BusError, MirrorTimeout, StateError
from busmq_spark.metrics import Metrics
from busmq_spark.mirror.runner import MirrorRunner
from busmq_spark.mirror.settings import MirrorSettings
from busmq_spark.mirror.status import MirroredQueueStatus
from busmq_spark.option_parsing import from_call

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus

CAUGHT_UP_POLL_S = 0.02


class BusMirror(Handle):
    """Copies queues to this bus; ``async with``, or ``start`` and ``detach``. Threads of its own do
    the work.
    """

    def __init__(
        self,
        bus: Bus,
        origin: str | Sequence[str],
        patterns: tuple[str, ...],
        metrics: Metrics | None,
        options: dict[str, Any],
    ) -> None:
        self.settings = from_call(
            MirrorSettings, "mirror", {**options, "origin": origin, "patterns": patterns}
        )
        self._bus = bus
        self._metrics = metrics
        self._runner: MirrorRunner | None = None
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"BusMirror({self.settings.masked_origin!r})"

    async def __aenter__(self) -> Self:
        return await self.start()

    async def start(self) -> Self:
        """Begin, and return the mirror.

        Raises:
            StateError: It runs already.
            BusError: The error of the first contact with the origin, such as LinkLost,
                FederationRefused or Unauthorized.
        """
        async with self._lock:
            if self._runner is not None:
                raise StateError(
                    event="start",
                    what=repr(self),
                    state="started already",
                    remedy="Make another with bus.mirror(…)",
                )
            runner = MirrorRunner(self.settings, self._bus.options, self._metrics)
            try:
                await asyncio.to_thread(runner.start)
            except BaseException:
                await asyncio.to_thread(runner.stop)
                raise
            self._runner = runner
            self._bus.adopt(self)
        return self

    async def detach(self) -> None:
        """End; the mirrors stay mirrors, and go on when they are mirrored again."""
        async with self._lock:
            runner, self._runner = self._runner, None
            if runner is not None:
                self._bus.release(self)
                await asyncio.to_thread(runner.stop)

    @property
    def error(self) -> BusError | None:
        """Why nothing is mirrored now: one side is away. Return None while it is running."""
        return self._runner.error if self._runner else None

    def status(self) -> list[MirroredQueueStatus]:
        """Return the status of each queue, by name."""
        return self._runner.status() if self._runner else []

    async def caught_up(self, timeout_s: float = 60.0) -> list[MirroredQueueStatus]:
        """Wait until everything is copied that the origin had when this was called; queues that
        have stopped are not waited for.

        Raises:
            StateError: The mirror is not started.
            MirrorTimeout: It has not caught up within ``timeout_s``. It goes on.
            BusError: The error of the mirror, if there is one after ``timeout_s``.
        """
        until, runner = time.monotonic() + timeout_s, self._runner
        if runner is None:
            raise StateError(
                event="wait for",
                what=repr(self),
                state="not started",
                remedy="Use it inside 'async with', or call start()",
            )
        look = runner.look_now()
        goal: dict[str, int] | None = None
        while time.monotonic() < until:
            found = runner.status()
            if goal is None and runner.looked >= look:
                goal = {each.queue: each.last + each.behind for each in found}
            if goal is not None and all(
                each.error or each.last >= goal.get(each.queue, 0) for each in found
            ):
                return found
            await asyncio.sleep(CAUGHT_UP_POLL_S)
        if self.error is not None:
            raise self.error
        raise MirrorTimeout(origin=self.settings.masked_origin, timeout_s=timeout_s)
