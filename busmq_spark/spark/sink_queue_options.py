"""What the options of a sink say of the queues it writes to."""

from __future__ import annotations

from busmq_spark.options import WriteOptions
from busmq_spark.store.protocol import FullQueueWait, QueueCreateOptions


def queue_creation(options: WriteOptions) -> QueueCreateOptions:
    """What a sink writes when a queue does not exist."""
    return QueueCreateOptions(options.create, options.ttl_s, options.maxsize)


def full_queue_wait(options: WriteOptions) -> FullQueueWait:
    """What a sink does while a queue is full."""
    return FullQueueWait(options.full_timeout_ms if options.on_full == "block" else 0)
