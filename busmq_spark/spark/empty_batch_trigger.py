"""The time at which an idle query plans a batch without rows, so that Spark commits the previous
one. No clock: the caller says what time it is.
"""

from __future__ import annotations

from typing import Any

IDLE_BEFORE_EMPTY_BATCH_S = 5.0
"""The idle seconds after which a query plans a batch without rows."""
MAX_EMPTY_BATCHES = 3
"""So many of them in a row at most: Spark commits with the next batch; with async progress
tracking, with one of those that follow.
"""


class EmptyBatchTrigger:
    """The offset of an idle query: the same again, and Spark runs no batch, or one with another
    ``idle``, and Spark runs an empty batch.
    """

    def __init__(self) -> None:
        self._since: float | None = None

    def next(
        self, at: dict[str, Any], now: float, *, early: bool, available_now: bool
    ) -> dict[str, Any]:
        """The offset to plan while messages of the batch that ends ``at`` are not acknowledged and
        nothing is new. ``now`` in seconds.

        ``early``: acks are put off, so a commit would not help. ``available_now``: the query ends
        once nothing is new, so there is no time to wait.
        """
        self._since = now if self._since is None else self._since
        soon = (early or now - self._since < IDLE_BEFORE_EMPTY_BATCH_S) and not available_now
        if soon or at.get("idle", 0) >= (1 if available_now else MAX_EMPTY_BATCHES):
            return at
        self._since = None
        return {**at, "idle": at.get("idle", 0) + 1}

    def end(self) -> None:
        """Something is new."""
        self._since = None
