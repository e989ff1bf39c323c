"""The options of a sink about the queues that it writes to."""

from __future__ import annotations

from busmq_spark.options import WriteOptions
from busmq_spark.store.protocol import FullQueueWait, QueueCreateOptions


def queue_creation(options: WriteOptions) -> QueueCreateOptions:
    """Return the settings of a queue that a sink creates."""
    return QueueCreateOptions(options.create, options.ttl_s, options.maxsize)


def full_queue_wait(options: WriteOptions) -> FullQueueWait:
    """Return the wait of a sink for a full queue."""
    return FullQueueWait(options.full_timeout_ms if options.on_full == "block" else 0)
