"""The other data centre: its servers themselves, or a federation server in front of them. One
thread reads with one store.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from busmq_spark.errors import BusError
from busmq_spark.mirror.copy_planning import (
    MAX_CALL_BYTES,
    NO_CLOCK,
    NO_WITNESS,
    ClockExcerpt,
    CopyRange,
    CopyRangeReadResult,
    EncodedMessages,
    Witness,
    read_clocks,
)
from busmq_spark.mirror.settings import MIRROR_PATIENCE_S, MirrorSettings
from busmq_spark.queue.message import Range
from busmq_spark.redis_io.layout import redis_layout
from busmq_spark.store.protocol import (
    MirrorOriginReadStore,
    PushListeners,
    QueueCreateOptions,
    RowStream,
)
from busmq_spark.store.redis_push_listeners import RedisPushListeners
from busmq_spark.store.redis_store import RedisStore
from busmq_spark.writing.mirror import NO_MARK, OriginQueueState

TARGET_REPLY_BYTES = 1024 * 1024
"""The target size of one reply of Redis: each reader keeps a buffer for the largest."""


def open_origin(settings: MirrorSettings) -> MirrorOriginReadStore:
    """A new store; nothing is connected yet."""
    if settings.is_federated:
        from busmq_spark.federation.bulk.store import FederationBulkStore

        return FederationBulkStore(settings.federation)
    return RedisStore(redis_layout(settings.redis), MIRROR_PATIENCE_S, TARGET_REPLY_BYTES)


def make_push_listeners(
    settings: MirrorSettings, notified: threading.Event
) -> Sequence[PushListeners]:
    """Return the threads that wake the mirror at a push, not started."""
    if settings.is_federated:
        from busmq_spark.federation.bulk.client import FederationPushListenerThread

        return [FederationPushListenerThread(settings.federation, notified)]
    return [
        RedisPushListeners(RedisStore(redis_layout(settings.redis), MIRROR_PATIENCE_S), notified)
    ]


class ThreadLocalOriginStores:
    """A store for each thread that asks."""

    def __init__(self, settings: MirrorSettings) -> None:
        self._settings = settings
        self._local = threading.local()
        self._all: list[MirrorOriginReadStore] = []

    @property
    def store_of_thread(self) -> MirrorOriginReadStore:
        """Return the store of this thread."""
        if not hasattr(self._local, "store"):
            self._local.store = open_origin(self._settings)
            self._all.append(self._local.store)
        store: MirrorOriginReadStore = self._local.store
        return store

    def close(self) -> None:
        """Close when no thread asks any more."""
        for store in self._all:
            with suppress(BusError):
                store.close()


def read_windows(
    store: MirrorOriginReadStore, windows: Sequence[CopyRange]
) -> list[CopyRangeReadResult]:
    """The messages of windows, one of each queue, each with what the queue was before. Raises
    LinkLost.
    """
    spans, pieces = store.read_with_spans(
        [Range(window.queue, window.born, window.after + 1, window.upto) for window in windows]
    )
    found = {window.queue: CopyRangeReadResult(window, spans[window.queue]) for window in windows}
    for rows in found.values():
        rows.after, rows.upto = rows.window.after, rows.window.upto or rows.span.last_id
        rows.sound = rows.span.born == rows.window.born and rows.span.last_id >= rows.upto
    _add_rows(pieces, found)
    unsure = [rows for rows in found.values() if rows.sound and not _is_complete(rows)]
    # The last message of the window is gone: so it must still be true that the origin has our
    # history, and that it has given these ids.
    after = (
        store.spans({rows.window.queue: (rows.window.after, NO_MARK) for rows in unsure})
        if unsure
        else {}
    )
    asked = [rows for rows in found.values() if not rows.window.upto or not rows.span.after_mark]
    clocks = read_clocks(
        store, {rows.window.queue: (rows.window.witness, rows.upto) for rows in asked if rows.upto}
    )
    for rows in asked:
        rows.clock = clocks.get(rows.window.queue, NO_CLOCK)
    for rows in unsure:
        now, then = after[rows.window.queue], rows.span
        gone = not rows.span.upto_mark or now.floor >= (rows.last or rows.window.after) + 1
        rows.sound = (
            gone
            and now.born == then.born
            and now.last_id >= then.last_id
            and now.after_mark in ("", then.after_mark)
        )
    return list(found.values())


def _add_rows(pieces: RowStream, found: dict[str, CopyRangeReadResult]) -> None:
    came = 0
    for piece in pieces:
        rows = found[piece.queue]
        rows.parts.append(EncodedMessages.of(piece.first, piece.values))
        rows.bytes += piece.values.nbytes
        came += piece.values.nbytes
        if came > MAX_CALL_BYTES:
            pieces.close()
            for each in found.values():  # the ones after it have not come either
                each.sound = each.sound and each.last >= (each.window.upto or each.span.upto)
            return


def _is_complete(rows: CopyRangeReadResult) -> bool:
    """Whether the last message that was to be read has come, and is the one that was planned."""
    last = rows.window.upto or rows.span.upto
    if not last or not rows.span.upto_mark or rows.last != last:
        return False
    rows.sound = rows.mark(last) == rows.span.upto_mark
    return True


class LookedAtQueue(NamedTuple):
    """A queue as the mirror has it when it looks at the origin."""

    last: int
    """Copied up to this id, or NO_MARK."""
    witness: Witness = NO_WITNESS
    checked: int = -1


def look_at_clocks(
    store: MirrorOriginReadStore,
    queues: Mapping[str, LookedAtQueue],
    spans: Mapping[str, OriginQueueState],
) -> dict[str, ClockExcerpt]:
    """The clocks of the queues whose last copied message is gone, and that are not checked yet as
    they are.
    """
    gone = {
        name
        for name, span in spans.items()
        if not span.after_mark and span.last_id != queues[name].checked
    }
    return read_clocks(
        store,
        {
            name: (queues[name].witness, spans[name].last_id)
            for name in gone
            if queues[name].witness.id
        },
    )


def look_at_queues(
    store: MirrorOriginReadStore, queues: Sequence[tuple[str, int]]
) -> dict[str, OriginQueueState]:
    """Each queue as it is, with the id copied last. A queue whose life has no name yet, since only
    npm busmq knows it, gets one.
    """
    found = dict(store.spans({name: (last, NO_MARK) for name, last in queues}))
    if unnamed := [name for name, span in found.items() if span.ttl_s and not span.born]:
        store.attach(unnamed, QueueCreateOptions(allowed=False, ttl_s=1))
        found.update(
            store.spans({name: (last, NO_MARK) for name, last in queues if name in unnamed})
        )
    return found
