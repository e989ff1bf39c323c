"""The other data centre: its servers themselves, or a federation server in front of them. One thread reads with one store."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from busmq_spark.core.mirror import Span
from busmq_spark.core.position import Range
from busmq_spark.core.state import fingerprint
from busmq_spark.errors import BusError
from busmq_spark.mirror.settings import PATIENCE_S, MirrorSettings
from busmq_spark.mirror.windows import MOST_BYTES, Window, WindowRows
from busmq_spark.redis_io.layout import redis_layout
from busmq_spark.store.protocol import OriginStore, PushNotifiers, QueueCreation
from busmq_spark.store.push_notifiers import RedisPushNotifiers
from busmq_spark.store.redis_store import RedisStore

REPLY_BYTES = 1024 * 1024
"""What one reply of Redis aims at: each reader keeps a buffer for the largest."""


def open_origin(settings: MirrorSettings) -> OriginStore:
    """A new store; nothing is connected yet."""
    if settings.federated:
        from busmq_spark.federation.bulk.store import FederatedStore

        return FederatedStore(settings.federation)
    return RedisStore(redis_layout(settings.redis), PATIENCE_S, REPLY_BYTES)


def listeners(settings: MirrorSettings, notified: threading.Event) -> Sequence[PushNotifiers]:
    """What wakes the mirror at a push, not started."""
    if settings.federated:
        from busmq_spark.federation.bulk.store import FederatedPushNotifier

        return [FederatedPushNotifier(settings.federation, notified)]
    return [RedisPushNotifiers(RedisStore(redis_layout(settings.redis), PATIENCE_S), notified)]


class OriginStores:
    """A store for each thread that asks."""

    def __init__(self, settings: MirrorSettings) -> None:
        self._settings = settings
        self._local = threading.local()
        self._all: list[OriginStore] = []

    @property
    def mine(self) -> OriginStore:
        """That of this thread."""
        if not hasattr(self._local, "store"):
            self._local.store = open_origin(self._settings)
            self._all.append(self._local.store)
        store: OriginStore = self._local.store
        return store

    def close(self) -> None:
        """When no thread asks any more."""
        for store in self._all:
            with suppress(BusError):
                store.close()


def read(store: OriginStore, windows: Sequence[Window]) -> list[WindowRows]:
    """The messages of windows, one of each queue, each with what the queue was before. Raises LinkLost."""
    spans = store.spans({window.queue: (window.after, window.upto) for window in windows})
    found = {window.queue: WindowRows(window, spans[window.queue]) for window in windows}
    servers = store.locate([window.queue for window in windows])
    ranges = []
    for window in windows:
        span, rows = spans[window.queue], found[window.queue]
        rows.after, rows.upto = window.after, window.upto or span.last_id
        last = window.upto or span.upto
        rows.sound = span.born == window.born and span.last_id >= rows.upto
        if rows.sound and span.oldest and max(window.after + 1, span.oldest) <= last:
            ranges.append(Range(window.queue, span.born, max(window.after + 1, span.oldest), last, servers[window.queue]))
    if ranges:
        _fill(store, ranges, found)
    unsure = [rows for rows in found.values() if rows.sound and not _whole(rows)]
    # What was to be read last has gone meanwhile: so it must still be true that the origin has our history, and that it has given these ids.
    after = store.spans({rows.window.queue: (rows.window.after, -1) for rows in unsure}) if unsure else {}
    for rows in unsure:
        now, then = after[rows.window.queue], rows.span
        gone = not rows.span.upto_mark or now.floor >= (rows.ids[-1] + 1 if rows.ids else rows.window.after + 1)
        rows.sound = gone and now.born == then.born and now.last_id >= then.last_id and now.after_mark in ("", then.after_mark)
    return list(found.values())


def _fill(store: OriginStore, ranges: Sequence[Range], found: dict[str, WindowRows]) -> None:
    for piece in store.read_many(ranges, False):
        rows = found[piece.queue]
        values = piece.values.to_pylist()
        rows.ids += range(piece.first, piece.first + len(values))
        rows.values += values
        rows.bytes += piece.values.nbytes
        if rows.bytes > MOST_BYTES and len(rows.values) > 1 and rows.ids[-1] < rows.upto:
            for each in found.values():  # those behind it have not come either
                each.sound = each.sound and bool(each.ids) and each.ids[-1] >= (each.window.upto or each.span.upto)
            return


def _whole(rows: WindowRows) -> bool:
    """Whether the last message that was to be read has come, and is the one that was planned."""
    last = rows.window.upto or rows.span.upto
    if not last or not rows.span.upto_mark or not rows.ids or rows.ids[-1] != last:
        return False
    rows.sound = fingerprint(rows.values[-1]) == rows.span.upto_mark
    return True


def looked_at(store: OriginStore, queues: Sequence[tuple[str, int]]) -> dict[str, Span]:
    """Each queue as it is, with the id copied last. One whose life has no name yet, since only npm busmq knows it, gets one."""
    found = dict(store.spans({name: (last, -1) for name, last in queues}))
    if unnamed := [name for name, span in found.items() if span.ttl_s and not span.born]:
        store.attach(unnamed, QueueCreation(allowed=False, ttl_s=1))
        found.update(store.spans({name: (last, -1) for name, last in queues if name in unnamed}))
    return found
