"""Errors of the Spark source and sink: the engine, a recorded batch, and lost messages.

Errors of the choice of an engine, and of the jar with the Java one.

Errors of the exactly-once sink about a batch that is, or may be, recorded.

DataLoss and its kinds: planned messages are gone.
"""

from __future__ import annotations

from typing import Any, ClassVar

from busmq_spark.errors.base import BusError


class EngineError(BusError):
    """Option ``engine`` asks for Java or Python where that one cannot do what the other options
    say, or is not there.
    """

    code = "BUSMQ_ENGINE"
    template = "engine={engine} is not possible: {reason}. {remedy}"
    remedy = "Leave `engine` out, or do what the message names."


class JarVersionError(BusError):
    """The jar with the Java engine is of another version than the Python package that is to work
    with it, or than a second jar.
    """

    code = "BUSMQ_JAR_VERSION"
    template = (
        "{found}. Start Spark with the jar of the installed package only: busmq jar prints its"
        " path, and in a source tree make jar builds it"
    )


class StagingLost(BusError):
    """Staged rows of a batch vanished (ttl, flush, eviction) before they were committed."""

    code = "BUSMQ_STAGING_LOST"
    remedy = (
        "Restart the query to stage them again; where the message says that the batch is recorded,"
        " replay its source with a new checkpoint. See that Redis evicts nothing (`maxmemory-policy"
        " noeviction`)."
    )
    template = (
        "sink {sink}: batch {batch} staged {expected} rows for queue {queue!r} but {found} are left"
        " in {key}. Nothing of the missing rows was appended. {remedy}, and see that Redis evicts"
        " nothing (maxmemory-policy noeviction)"
    )


class StaleBatch(BusError):
    """The sink has committed a later batch than the one offered to it."""

    code = "BUSMQ_STALE_BATCH"
    template = (
        "sink {sink}: batch {batch} was offered but batch {found} is already committed. Another run"
        " of this query is ahead, or the checkpoint was copied, or replaced while sinkId stayed the"
        " same. Use a sinkId of its own for a copy, else a new sinkId with a new checkpoint"
    )


class StaleRun(BusError):
    """A later run of the same sink has begun: it stages this batch itself. Nothing of this run was
    appended, and its rows are not lost.
    """

    code = "BUSMQ_STALE_RUN"
    template = (
        "sink {sink}: batch {batch} is not recorded, since a later run of the query has begun to"
        " stage. Let one run at a time use a sink and its checkpoint; the later one goes on. A"
        " copied checkpoint, or a second write beside this one, needs a sinkId of its own"
    )


class SinkTargetsError(BusError):
    """A batch number that the sink has recorded for some queues or topics came again for others."""

    code = "BUSMQ_SINK_TARGETS"
    template = (
        "sink {sink}: batch {batch} is recorded for {found}, and this write sends it to {expected}."
        " A sink is its id and its targets, so nothing of this write is appended. The checkpoint"
        " was copied, or two writes have one sinkId: give this write a sinkId of its own, or start"
        " it with a new checkpoint. The sinkId on record stays with the other. If this query was"
        " changed to write elsewhere: let it end this batch as before, then change it"
    )


class SinkRolledBack(BusError):
    """The Redis of a sink is older than the checkpoint of the query: a batch that the sink has
    appended is gone.
    """

    code = "BUSMQ_SINK_ROLLED_BACK"
    template = (
        "sink {sink}: the checkpoint has its batch {expected}, and Redis has {found}. Redis is"
        " older than the checkpoint (restored from a backup, flushed, or a failover that lost"
        " acknowledged writes), so rows that were appended may be gone, or the sink was moved:"
        " other redis.url, mirror, or federation identity. Nothing of this batch is appended."
        " Compare the queues with the source, and start the query with a new checkpoint that begins"
        " after the stored rows. To go on without the lost rows, run it once with"
        " failOnDataLoss=false at the sink"
    )


class BatchChanged(BusError):
    """A batch number that the sink has recorded came again with other offsets, or with other rows;
    ``details["by"]`` says which.
    """

    code = "BUSMQ_BATCH_CHANGED"
    remedy = (
        "If the checkpoint is older than the sink, start the query with a new checkpoint that"
        " begins after the recorded batches. If the query computes other rows each time from the"
        " same input, `onChangedBatch=keep` takes those that were recorded first."
    )
    template = (
        "sink {sink}: batch {batch} is recorded with other {by} than it has now: recorded {found};"
        " now {expected}. Nothing of it is appended, and its sources are not acknowledged. {remedy}"
    )


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
