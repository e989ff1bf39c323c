"""Losses of a reader: between a position of its checkpoint and the present queue, and by an ack.
Decisions without a connection.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from busmq_spark.queue.message import Position
from busmq_spark.reading.reader_operations import QueueState


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages that were planned and are gone. ``kind`` as in errors.DataLoss, or ``removed`` when
    the state alone does not show by which client.
    """

    kind: str
    expected: str
    found: str
    ids: int = 0
    """The number of ids known to be missing; 0 when the number is unknown."""


def count_messages_to_delete(
    state: QueueState, last: int, own: int | None, others: Collection[int]
) -> int:
    """Return the number of stored messages that an ack of ``last`` deletes unread, at once or when
    retention ends. It is an upper bound where ids have holes. Messages that all readers have
    acknowledged before do not count.

    ``own`` is the acked id of its subscription, None when it has none yet; ``others`` are those of
    the other subscriptions.
    """
    if own is None and others:
        # Stored messages are kept for the other subscriptions; those that all of them have acked
        # are deleted already
        return 0
    return max(
        0,
        min(state.count, min(last, state.newest, *others) - max(state.floor, state.done, own or 0)),
    )


def loss_between(at: Position, now: QueueState) -> Loss | None:
    """Return the loss between a position and the present queue; return None when each message after
    the position is stored.
    """
    following = f"ids from {at.last + 1} on"
    if not now.exists:
        return Loss("expired", f"{following} of incarnation {at.born}", "no such queue")
    if now.born != at.born:
        found = f"incarnation {now.born or 'unnamed'} with ids up to {now.last_id}"
        return Loss("recreated", f"incarnation {at.born} read up to id {at.last}", found)
    if now.last_id < at.last:
        return Loss("rolled-back", f"a last id of at least {at.last}", f"last id {now.last_id}")
    if at.mark and now.mark and at.mark != now.mark:
        return Loss(
            "reissued",
            f"message {at.last} with fingerprint {at.mark}",
            f"one with fingerprint {now.mark}",
        )
    if now.floor > at.last:
        oldest = (
            f"oldest stored id {now.oldest}"
            if now.count
            else f"nothing stored after id {now.last_id}"
        )
        return Loss("removed", following, oldest, now.floor - at.last)
    return None
