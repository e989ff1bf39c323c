"""The streaming reader, as Spark calls it: on the driver it plans batches and acknowledges them
(planning.py), in tasks it reads ranges.

Rule 1. A batch is a function of its two offsets. Whatever planning learns goes into the end offset;
        nothing else survives a restart.
Rule 2. Acks come from ``commit``, which Spark calls with the next batch, so an idle query plans one
without rows. The ``start`` that Spark hands to ``latestOffset`` is acknowledged where it is known
to be in the logs: with async progress tracking it may not be there yet.
Rule 3. Threads and connections begin with the first call on the driver, never in ``__init__``:
        Spark pickles readers to its workers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from busmq_spark.extras import DeferredImport
from busmq_spark.options import ReadOptions
from busmq_spark.queue.caching import cached_attribute
from busmq_spark.reading import offsets
from busmq_spark.spark import compat
from busmq_spark.spark.compat import freeze_imports
from busmq_spark.spark.error_display import without_traceback
from busmq_spark.spark.schema import TIMESTAMP_COLUMN_NAME

if TYPE_CHECKING:
    from busmq_spark.spark.read.planning import StreamingQueryPlanner

log = logging.getLogger("busmq_spark")

_query_planning: DeferredImport[type[StreamingQueryPlanner]] = DeferredImport(
    "spark.read.planning", "StreamingQueryPlanner"
)
_read_partition: DeferredImport[Callable[..., Iterator[Any]]] = DeferredImport(
    "spark.read.tasks", "read_partition"
)
BLIND_PROBE_PAUSE_S = 0.2
"""Pause between two probes of an unreachable link, where Spark does not pass the checkpoint's
location.
"""
WAITS_FOR_LINKS_REASON = (
    "the query waits for all its links before its first batch: Spark before 4.2 does not show a"
    " source the checkpoint, and a batch without one of them would drop the positions there. With"
    " onUnavailable=fail it ends instead"
)


@without_traceback
class StreamReader(DataSourceStreamReader, compat.AvailableNow):
    """A streaming source. Lives in one process per query; Spark calls it from one thread."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @cached_attribute
    def _planning(self) -> StreamingQueryPlanner:
        return _query_planning.get()(
            self._options, timed=TIMESTAMP_COLUMN_NAME in self._schema.names
        )

    # -- what Spark calls on the driver ------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Constant: Spark asks twice, and again when it replays the first batch. The start of
        reading is in that batch's end offset.
        """
        return dict(offsets.INITIAL_OFFSET)

    def getDefaultReadLimit(self) -> Any:
        return compat.read_limit(
            self._options.max_messages, self._options.max_bytes, self._options.min_messages
        )

    def prepareForTriggerAvailableNow(self) -> None:
        self._planning.planner.prepare_for_available_now()

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """The end of the next batch.

        Spark before 4.2 hands over neither start nor limit. The end of the last planning then
        stands for the start. Before any planning, a checkpoint may lie anywhere: such a batch goes
        up to the newest message, uncapped, so that it cannot end before the checkpoint.
        """
        planning = self._planning
        freeze_imports()
        with planning.noting_errors():
            if (found := planning.latest_offset(start, limit)) is None:
                log.warning(WAITS_FOR_LINKS_REASON)
                while (found := planning.latest_offset(start, limit)) is None:
                    time.sleep(BLIND_PROBE_PAUSE_S)
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest ids of the last planning, with the number of messages after the last
        batch and their age in seconds. Of an unreachable link, the ids it reported last.
        """
        return self._planning.report_latest_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planning = self._planning
        freeze_imports()
        with planning.noting_errors():
            return planning.partitions(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        with self._planning.noting_errors():
            self._planning.commit(end)

    def stop(self) -> None:
        """Spark rarely calls this, so nothing depends on it: leases and threads end by
        themselves.
        """
        self._planning.stop()

    # -- what Spark calls in tasks -----------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read_partition.get()(self._options, self._schema, partition)
