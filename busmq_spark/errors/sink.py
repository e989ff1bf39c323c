"""Errors of the exactly-once sink about a batch that is, or may be, recorded."""

from __future__ import annotations

from busmq_spark.errors.base import BusError


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
