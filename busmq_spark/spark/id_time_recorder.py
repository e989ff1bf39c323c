"""Notes when messages were seen: pushes of peers note nothing in the clock of a queue
(reading/times_of_ids.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from busmq_spark.errors import (
    ProtocolError,
    RemoteError,
    ServerRefused,
    Unauthorized,
)
from busmq_spark.reading import times_of_ids
from busmq_spark.store.protocol import ReadStore


class IdTimeRecorder:
    """Notes times for one reader: one call a second at most, and none while no id has moved."""

    def __init__(self) -> None:
        self._last_ids: Mapping[str, int] = {}
        self._noted: dict[str, int] = {}
        self._next = 0.0

    def note_new_times(
        self, last_ids: Mapping[str, int], store: ReadStore, *, at_once: bool = False
    ) -> None:
        """Note the last ids of queues, as far as they are news; the same object as before has none.
        ``at_once``: however soon after the last time.

        A note that Redis refuses is left out; the clock is then less exact.
        """
        now = time.monotonic()
        if last_ids is self._last_ids or (now < self._next and not at_once):
            return
        self._last_ids = last_ids
        moved = {queue: id for queue, id in last_ids.items() if 0 < id != self._noted.get(queue)}
        if moved:
            self._next = now + times_of_ids.NOTE_TIME_INTERVAL_S
            self._noted.update(moved)
            note_times_if_allowed(store, list(moved))


def note_times_if_allowed(store: ReadStore, queues: Sequence[str]) -> None:
    """Note the times of the newest ids, as far as the store lets: an older federation server does
    not know the question.
    """
    with suppress(ProtocolError, RemoteError, ServerRefused, Unauthorized):
        store.note_times(queues)
