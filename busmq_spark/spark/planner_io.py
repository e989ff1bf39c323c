"""Answers what the planner asks: from the store, and by what StreamQueueAcquirer does about a
loss.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from busmq_spark.queue.position import Range
from busmq_spark.reading.batch_planner import (
    IdsAtTimesQuestion,
    IntactQueuesQuestion,
    LastIdsQuestion,
    MessageFingerprintsQuestion,
    PositionAfterLossQuestion,
    PrefetchRowsQuestion,
    Question,
    QueueStatesQuestion,
    ReleaseExpiredQueue,
)
from busmq_spark.reading.times_of_ids import TimesOfIds
from busmq_spark.reading.trigger_limits import LastIdWithinBytesQuestion
from busmq_spark.spark.id_time_recorder import note_times_if_allowed
from busmq_spark.spark.message_times import fetch_times
from busmq_spark.spark.stream_queue_acquirer import StreamQueueAcquirer
from busmq_spark.store.multi_source_store import MultiSourceStore
from busmq_spark.store.protocol import ConsecutiveMessages

PREFETCHED_BYTES = 4 * 1024 * 1024
"""Bytes of a link up to which rows are fetched with the planning of a batch."""


class PlannerIO:
    """Answers the questions of one planning. ``prefetched``: rows that were fetched for it, by
    queue; ``times``: theirs, where rows have times.
    """

    def __init__(
        self, stream_queues: StreamQueueAcquirer, *, strict: bool, timed: bool = False
    ) -> None:
        self.prefetched: Mapping[str, Sequence[ConsecutiveMessages]] = {}
        self.times: Mapping[str, TimesOfIds] = {}
        self._stream_queues, self._strict, self._timed = stream_queues, strict, timed

    def __call__(self, question: Question) -> Any:
        """The answer to one question. Raises LinkLost, and DataLoss for a loss that is not
        allowed.
        """
        store = self._stream_queues.store
        match question:
            case LastIdsQuestion(queues):
                return store.counters(queues)
            case IntactQueuesQuestion(wanted):
                return store.intact(wanted)
            case QueueStatesQuestion(ids):
                return store.states(ids)
            case MessageFingerprintsQuestion(ids):
                return store.marks(ids)
            case IdsAtTimesQuestion(wanted):
                return store.find_times(wanted)
            case LastIdWithinBytesQuestion(queue, first, last, budget):
                return store.bytes_until(queue, first, last, budget)
            case PrefetchRowsQuestion(ranges):
                return self._prefetch_rows(ranges)
            case PositionAfterLossQuestion(queue, at, loss):
                return self._stream_queues.handle_loss(queue, at, loss)
            case ReleaseExpiredQueue(queue):
                return self._stream_queues.drop_expired_queue(queue)

    def _prefetch_rows(self, ranges: Sequence[Range]) -> Collection[str]:
        """A link that goes away now must not be needed by the batch: its queues are left out, also
        where only their times are missing.
        """
        store = self._stream_queues.store
        assert isinstance(store, MultiSourceStore), "only rows of links are fetched ahead"
        found = store.fetch(ranges, PREFETCHED_BYTES, self._strict)
        if self._timed:
            note_times_if_allowed(store, list(found))
            self.times = fetch_times(store, [part for part in ranges if found.get(part.queue)])
            found = {
                queue: rows for queue, rows in found.items() if not rows or queue in self.times
            }
        self.prefetched = {queue: rows for queue, rows in found.items() if rows}
        return found
