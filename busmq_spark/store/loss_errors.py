"""Turns a loss into the error that names its cause, from what Redis still shows."""

from __future__ import annotations

from typing import NoReturn

from busmq_spark.errors import (
    CheckpointOlder,
    ConsumedElsewhere,
    DataLoss,
    IdsReissued,
    QueueExpired,
    QueueFlushed,
    QueueRecreated,
    RedisRolledBack,
)
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import Range
from busmq_spark.reading.loss import Loss
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.optional_commands import ask_if_allowed
from busmq_spark.store.protocol import LossCauseEvidence

_ERRORS: tuple[type[DataLoss], ...] = (
    QueueExpired,
    QueueFlushed,
    CheckpointOlder,
    ConsumedElsewhere,
    QueueRecreated,
    RedisRolledBack,
    IdsReissued,
)
_BY_KIND = {error.kind: error for error in _ERRORS}


def loss_error(
    queue: str, loss: Loss, traces: LossCauseEvidence, *, own_listeners: int = 0
) -> DataLoss:
    """The error for a loss. Removal leaves little trace: un-acked copies or another listener mean a
    consumer, else it was a deletion.
    """
    kind = loss.kind
    if kind == "expired" and traces.empty:
        kind = "flushed"
    if kind == "removed":
        kind = "consumed" if traces.unacked or traces.listeners > own_listeners else "flushed"
    return _BY_KIND[kind](queue=queue, expected=loss.expected, found=loss.found)


def read_traces(link: Link, keys: QueueKeys) -> LossCauseEvidence:
    """Ask the server of a queue for traces of the client that removed messages."""
    acked = command("HGET", keys.metadata, "acked")
    unacked = [command("LINDEX", keys.toack, end) for end in (0, -2)]
    first, last, done = link.execute([*unacked, acked])
    size = link.run(ask_if_allowed("DBSIZE"))
    listeners = sum(
        link.ask_each_master(lambda node: _count_listeners(node, keys))
    )  # one may listen at any node
    return LossCauseEvidence(
        (int(first), int(last)) if first else None, listeners, size == 0, int(done or 0)
    )


def _count_listeners(link: Link, keys: QueueKeys) -> int:
    """Return the number of connections that listen for pushes to a queue at one server; 0 where it
    does not say.
    """
    counted = link.run(ask_if_allowed("PUBSUB", "NUMSUB", keys.available))
    return int(counted[1]) if isinstance(counted, list) else 0


def raise_removed(
    link: Link, keys: QueueKeys, expected: str, found: str, need: int, oldest: int
) -> NoReturn:
    """Raise the error for ids that are no longer stored, seen by a task."""
    last_id, unacked, acks = link.execute(
        [
            command("GET", keys.msgid),
            command("LRANGE", keys.toack, 0, 0),
            command("HLEN", keys.acks),
        ]
    )
    listeners = _count_listeners(link, keys)
    if int(last_id or 0) < need:
        raise loss_error(
            keys.name,
            Loss("rolled-back", expected, f"last id {int(last_id or 0)}"),
            LossCauseEvidence(None, 0, empty=False),
        )
    # Our own reader listens too (one per query); a subscription of another query counts as another
    # consumer.
    traces = LossCauseEvidence(
        (int(unacked[0]), 0) if unacked else None, listeners + max(0, acks - 2), empty=False
    )
    raise loss_error(
        keys.name, Loss("removed", expected, found, max(0, oldest - need)), traces, own_listeners=1
    )


def check_life(part: Range, born: str, need: int) -> None:
    """Raise the error for a range, read up to before the id ``need``, whose queue is gone (``born``
    empty) or in another life.
    """
    if born == part.born:
        return
    expected = f"ids {need}..{part.last} of incarnation {part.born}"
    if not born:
        raise QueueExpired(
            queue=part.queue,
            expected=expected,
            found="no such queue, or one that no reader has named",
        )
    raise QueueRecreated(queue=part.queue, expected=expected, found=f"incarnation {born}")
