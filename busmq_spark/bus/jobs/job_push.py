"""The push of the messages of jobs. It notes for each chunk which jobs are sent, so that their
callers can wait for outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from busmq_spark.bus.queue.push import PendingPush
from busmq_spark.errors import BusError, JobsNotSent, LinkLost

if TYPE_CHECKING:
    from busmq_spark.bus.jobs.job_outcome_waiters import JobOutcomeWaiter
    from busmq_spark.bus.queue.queue import Queue


class PendingJobsPush(PendingPush[bytes]):
    """Messages of jobs; an error is the result of the wait."""

    __slots__ = ("queue", "wait")

    def __init__(self, messages: Sequence[bytes], wait: JobOutcomeWaiter, queue: Queue) -> None:
        super().__init__(messages, wait.result, single=False)
        self.wait, self.queue = wait, queue

    def on_stored(self, first: int, count: int) -> None:
        """The next ``count`` jobs have messages from ``first`` on."""
        self.ids.extend(range(first, first + count))
        self.wait.on_sent(first, count, self.queue.life)


class PendingJobBatchPush(PendingJobsPush):
    """Messages of jobs; an error says how many are sent."""

    __slots__ = ()

    def fail(self, error: BusError | None) -> None:
        """Nothing more is sent; an ``error`` of None cancels it."""
        if error is not None:
            count, sent = len(self.values), len(self.ids)
            unknown = self.sent - sent if isinstance(error, LinkLost) else 0
            found = JobsNotSent(
                queue=self.queue.name,
                sent=sent,
                unknown=unknown,
                left=count - sent - unknown,
                reason=str(error),
            )
            found.__cause__ = error
            error = found
        super().fail(error)
