"""DataLoss and its kinds: planned messages are gone."""

from __future__ import annotations

from typing import Any, ClassVar

from busmq_spark.errors.base import BusError


class DataLoss(BusError):
    """Planned messages are gone. ``details``: kind, queue, expected, found.

    With ``failOnDataLoss=false`` the query goes on from the oldest stored message instead.
    """

    code = "BUSMQ_DATA_LOSS"
    kind: ClassVar[str] = "unknown"
    cause: ClassVar[str] = "messages are gone"
    template = (
        "queue {queue!r}: {cause}; expected {expected}, found {found}. To go on from the oldest"
        " stored message set failOnDataLoss=false; to start anew use a new checkpoint"
    )

    def __init__(self, **details: Any) -> None:
        super().__init__(**{**details, "kind": self.kind, "cause": self.cause})


class QueueExpired(DataLoss):
    """The queue's ttl ran out while no program kept it alive, or a program closed it."""

    code = "BUSMQ_QUEUE_EXPIRED"
    kind = "expired"
    cause = "it expired or was closed, with every message that was still in it"


class QueueFlushed(DataLoss):
    """Messages were deleted: ``queue.flush()``, FLUSHDB, or a consumer that left no trace."""

    code = "BUSMQ_QUEUE_FLUSHED"
    kind = "flushed"
    cause = "its messages were deleted before they were read"


class CheckpointOlder(DataLoss):
    """Messages after the position of this checkpoint were acknowledged: by this query with a newer
    one, or by another query.
    """

    code = "BUSMQ_CHECKPOINT_OLDER"
    kind = "acknowledged"
    cause = (
        "the checkpoint is older than what was acknowledged (restored from a backup, or a copy of"
        " one whose query has read on)"
    )


class ConsumedElsewhere(DataLoss):
    """Another consumer took messages this query had still to read."""

    code = "BUSMQ_CONSUMED_ELSEWHERE"
    kind = "consumed"
    cause = "another consumer took messages before they were read"


class QueueRecreated(DataLoss):
    """The queue died and came back: a new incarnation whose ids began again at 1."""

    code = "BUSMQ_QUEUE_RECREATED"
    kind = "recreated"
    cause = "it was removed and created again, so its ids began again at 1"


class RedisRolledBack(DataLoss):
    """Redis came back in a state older than the checkpoint."""

    code = "BUSMQ_REDIS_ROLLED_BACK"
    kind = "rolled-back"
    cause = (
        "Redis is older than the checkpoint (restored from a backup, or a failover that lost"
        " acknowledged pushes)"
    )


class IdsReissued(DataLoss):
    """Redis lost its tail and gave the same ids to other messages."""

    code = "BUSMQ_IDS_REISSUED"
    kind = "reissued"
    cause = (
        "ids that were already read now belong to other messages (a failover lost acknowledged"
        " pushes)"
    )
