"""The counters of a bulk server: the ``busmq_bulk_…`` metrics."""

from __future__ import annotations

from busmq_spark.federation.bulk.operations import OPERATIONS
from busmq_spark.metrics import Metrics


class BulkServerCounters:
    """Of all connections of one server."""

    def __init__(self, metrics: Metrics) -> None:
        self.calls = metrics.counter(
            "busmq_bulk_calls_total", "Calls taken", operation=tuple(OPERATIONS)
        )
        self.refused = metrics.counter("busmq_bulk_refused_total", "Calls answered with an error")
        self.rows = metrics.counter("busmq_bulk_rows_total", "Rows sent to readers")
        self.bytes = metrics.counter(
            "busmq_bulk_row_bytes_total", "Bytes of record batches sent to readers"
        )
