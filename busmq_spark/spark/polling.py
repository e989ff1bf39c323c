"""The polls of an idle query for pushes: at once after a notification, else every
``idlePollMs``.
"""

from __future__ import annotations

import threading
import time

from busmq_spark.options import ReadOptions

PUSH_WAIT_S = 0.01
"""Seconds for which an idle planning call waits for a push: about as long as Spark pauses between
two calls.
"""
MIN_POLL_S = 0.045
"""The least interval: with this 25 commands a second, however small the option is."""
LINK_POLL_S = 1.0
"""Seconds between two polls of federation servers by an idle query, at least. Their pushes wake it,
too; over a far link asking all the time is not cheap.
"""


class PollSchedule:
    """The pace of one query. ``notified`` is set by the push listeners."""

    def __init__(self, options: ReadOptions) -> None:
        self.notified = threading.Event()
        self._options = options
        self._next = 0.0

    def wait_for_push(self) -> bool:
        """Whether a push was notified; waits ``PUSH_WAIT_S`` for one at most, and not beyond the
        time of the next question.
        """
        woken = self.notified.wait(max(0.0, min(PUSH_WAIT_S, self._next - time.monotonic())))
        if woken:
            self.notified.clear()
        return woken

    def is_due(self) -> bool:
        """Whether to ask now, though no push was notified."""
        return time.monotonic() >= self._next

    def schedule_next_poll(self) -> None:
        """The answer has come; the next question is due an interval from now."""
        self._next = time.monotonic() + max(
            self._options.idle_poll_ms / 1000, LINK_POLL_S if self._options.links else MIN_POLL_S
        )
