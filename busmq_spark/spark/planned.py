"""Whether what a task reads is still what was planned: a Redis that lost its tail gives the same ids to other messages."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from busmq_spark.core.loss import lost
from busmq_spark.core.position import Position, Range
from busmq_spark.core.sources import shown
from busmq_spark.store.loss_errors import loss_error
from busmq_spark.store.protocol import LossEvidence, ReadStore, Rows

log = logging.getLogger("busmq_spark")


def read_planned(store: ReadStore, parts: Sequence[Range], ends: Mapping[str, Position], strict: bool) -> Iterator[Rows]:
    """The messages of ranges while the last message of the batch is still the one that was planned, whose fingerprint ``ends`` has.

    ``strict`` raises DataLoss, at the latest behind the last row, so that the batch fails. Else a queue that changed gives no further row, since
    its next batch begins with its oldest message; what was read is looked at again before it is handed out.
    """
    sound = {queue: ends[queue] for queue in dict.fromkeys(part.queue for part in parts) if queue in ends}
    changed = _changed(store, sound, strict)
    for rows in store.read_many([part for part in parts if part.queue not in changed], strict):
        if not strict and rows.queue in sound and rows.queue not in changed:
            changed |= _changed(store, {rows.queue: sound[rows.queue]}, strict)
        if rows.queue not in changed:
            yield rows
    if strict:
        _changed(store, sound, strict)


def _changed(store: ReadStore, ends: Mapping[str, Position], strict: bool) -> set[str]:
    """The queues whose messages up to the end of the batch are others now."""
    found = set()
    for queue, state in store.states({queue: end.last for queue, end in ends.items()}).items() if ends else ():
        loss = lost(ends[queue], state)
        if loss is None or loss.kind not in {"rolled-back", "reissued"}:
            continue  # the reader of the range says the rest
        error = loss_error(shown(queue), loss, LossEvidence(None, 0, empty=False))
        if strict:
            raise error
        log.warning("%s; its rows of this batch are skipped", error)
        found.add(queue)
    return found
