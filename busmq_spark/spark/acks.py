"""The acks of a reader: positions that are in Spark's logs for certain, each once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from busmq_spark.options import ReadOptions
from busmq_spark.queue.position import Position
from busmq_spark.reading import offsets
from busmq_spark.spark.stream_queue_acquirer import StreamQueueAcquirer

SYNCHRONOUS_ACK_COMMITS = 3
"""Spark calls ``commit`` of a batch after it has written the batch to its commit log: without async
progress tracking before it asks for the tasks of the next batch, with it in a thread of its own, by
chance before or after. So many batches in a row in this order show that the logs are synchronous; a
single one in the other order shows that they are not.
"""


class QueryAcks:
    """The acknowledged positions of a query, and the ones that it may acknowledge: those that are
    certainly in Spark's logs.

    =============== ===============================================================
    ====================================================== what is known   when it changes
    the start of a batch is acknowledged ===============
    ===============================================================
    ====================================================== first start     ``ack_start`` is called
    once                                    not yet: other readers of the query may begin before
    durable start   that of the first call, until another, or tasks are asked for   while the start
    is that one, unless it was replayed synchronous     +1 where the start of the tasks asked for
    was committed before  once there are SYNCHRONOUS_ACK_COMMITS in a row not synchronous where it
    was not committed before; for good                     never; only ``ack_end`` acknowledges
    =============== ===============================================================
    ======================================================
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._acked_positions: dict[str, Position] = {}
        self._last_committed: dict[str, Any] | None = None
        self._last_read_end: dict[str, Any] | None = (
            None  # the end of the batch whose tasks were asked for last
        )
        self._synchronous_batches: int | None = (
            # Batches that Spark committed while it planned the next; the value is None once one was
            # not
            0
        )
        self._is_first_start = True  # no start was handed over to ``ack_start`` yet
        # Tasks were asked for before that: the batch of the first start is executed again
        self._first_start_was_replayed = False
        self._durable_start: dict[str, Any] | None = (
            None  # a start that is in the checkpoint for certain
        )

    def ack_start(
        self,
        start: dict[str, Any] | None,
        positions: Mapping[str, Position],
        stream_queues: StreamQueueAcquirer,
    ) -> bool:
        """Acknowledge the start of a batch, where it is in the logs; false when that is put off to
        the next call.

        The first start of a process comes from the checkpoint itself. With the first call it is too
        early for an ack: other readers of the same query may not have been asked yet, and theirs
        may begin before it.
        """
        if self._is_first_start:
            self._is_first_start, self._durable_start = (
                False,
                None if self._first_start_was_replayed else start,
            )
            return False
        stream_queues.siblings.stop_admitting_readers()
        if start is not None and (
            start == self._durable_start
            or (self._synchronous_batches or 0) >= SYNCHRONOUS_ACK_COMMITS
        ):
            self.ack_now(positions, stream_queues)
        if start != self._durable_start:
            self._durable_start = None
        return True

    def count_synchronous_commits(
        self,
        start: dict[str, Any],
        end: dict[str, Any],
        stream_queues: StreamQueueAcquirer,
        *,
        planned_here: bool,
    ) -> None:
        """Called when Spark asks for the tasks of a batch. Notes whether Spark had committed the
        batch before, if this one was planned here.
        """
        if self._is_first_start:
            # The batch of the first start is executed again, so the start after it is no more
            # durable than later ones.
            self._first_start_was_replayed = True
        else:
            stream_queues.siblings.stop_admitting_readers()
        self._durable_start = None
        if (
            planned_here
            and end != self._last_read_end
            and start != offsets.INITIAL_OFFSET
            and self._synchronous_batches is not None
        ):
            self._synchronous_batches = (
                self._synchronous_batches + 1 if self._last_committed == start else None
            )
        self._last_read_end = end  # a batch that is read several times asks for its tasks each time

    def ack_end(
        self,
        end: dict[str, Any],
        positions: Mapping[str, Position],
        stream_queues: StreamQueueAcquirer,
    ) -> None:
        """Acknowledge the end of a batch that is in the commit log."""
        self._last_committed = end
        stream_queues.siblings.stop_admitting_readers()
        self.ack_now(positions, stream_queues)

    def ack_now(
        self, positions: Mapping[str, Position], stream_queues: StreamQueueAcquirer
    ) -> None:
        """Acknowledge, unless that was done before. Refused positions are a loss that planning will
        report.
        """
        fresh = self.unacked_positions(positions, stream_queues)
        lowest = stream_queues.siblings.lowest_positions(fresh) if fresh else {}
        results = stream_queues.store.ack(lowest, self._options.subscription) if lowest else {}
        for queue, position in fresh.items():
            if queue in results and results[queue].status != "ok":
                stream_queues.fail_on_refused_ack(queue, lowest[queue], results[queue])
            if queue in results or queue not in lowest:  # else its source is unreachable
                self._acked_positions[queue] = position

    def unacked_positions(
        self, positions: Mapping[str, Position], stream_queues: StreamQueueAcquirer
    ) -> dict[str, Position]:
        """Return the positions that have not been acknowledged."""
        if self._options.ack != "commit":
            return {}
        held = set(stream_queues.queues)
        return {
            queue: p
            for queue, p in positions.items()
            if self._acked_positions.get(queue) != p and p.last > 0 and queue in held
        }
