"""Answers what the planner asks: from the store, and by what the attachment does about a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from busmq_spark.core.caps import BytesUntil
from busmq_spark.core.planner import Counters, Fetch, Gone, LossFound, Marks, Question, States
from busmq_spark.spark.attach import Attachment
from busmq_spark.store.linked import LinkedStore
from busmq_spark.store.protocol import Rows

PREFETCHED_BYTES = 4 * 1024 * 1024
"""Bytes of a link up to which rows are fetched with the planning of a batch."""


class PlannerIO:
    """Of one planning. ``prefetched`` are the rows that were fetched for it, by queue."""

    def __init__(self, attachment: Attachment, *, strict: bool) -> None:
        self.prefetched: Mapping[str, Sequence[Rows]] = {}
        self._attachment, self._strict = attachment, strict

    def __call__(self, question: Question) -> Any:
        """The answer to one question. Raises LinkLost, and DataLoss for a loss that is not allowed."""
        store = self._attachment.store
        match question:
            case Counters(queues):
                return store.counters(queues)
            case States(ids):
                return store.states(ids)
            case Marks(ids):
                return store.marks(ids)
            case BytesUntil(queue, first, last, budget):
                return store.bytes_until(queue, first, last, budget)
            case Fetch(ranges):
                assert isinstance(store, LinkedStore), "only rows of links are fetched ahead"
                found = store.fetch(ranges, PREFETCHED_BYTES, self._strict)
                self.prefetched = {queue: rows for queue, rows in found.items() if rows}
                return found
            case LossFound(queue, at, loss):
                return self._attachment.after_loss(queue, at, loss)
            case Gone(queue):
                return self._attachment.forget(queue)
