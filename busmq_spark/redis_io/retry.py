"""The rule for retries after a failure: the pauses between the tries, and their end. The caller
waits, and knows what time it is.

Java has the same (redis/LinkRetry.java); tests/golden/retries-v1.json tests both.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from busmq_spark.errors import LinkLost

PATIENCE_S = 8.0
"""Seconds for which a step is retried while no server answers. Refused connections end the call in
about 8 s; a last try that hangs adds its own time-out.
"""
FAILOVER_PATIENCE_S = 60.0
"""Seconds for which a step is retried while servers answer but none is master: Sentinel and Cluster
need up to 35 s for a fail-over by default.
"""
PAUSES_S = (0.02, 1.0)
"""The first and the longest pause between two tries."""


class Pauses:
    """Each pause is twice the one before, up to the longest, and never in step with those of
    others.
    """

    def __init__(self, first_s: float = PAUSES_S[0], most_s: float = PAUSES_S[1]) -> None:
        self.failures = 0
        self._first_s, self._most_s = first_s, most_s

    def next_s(self) -> float:
        """Seconds to wait after one more failure."""
        pause_s: float = min(
            self._most_s, self._first_s * 2 ** min(self.failures, 16)
        ) * random.uniform(0.5, 1)  # noqa: S311  # jitter, not a secret
        self.failures += 1
        return pause_s


class LinkRetry(Pauses):
    """The tries of one thing, of which the first begins now. ``clock``: seconds."""

    def __init__(
        self, clock: Callable[[], float], pauses_s: tuple[float, float] = PAUSES_S
    ) -> None:
        super().__init__(*pauses_s)
        self._clock, self._began = clock, clock()

    def on_no_reply(self) -> None:
        """A reply timed out. The first time-out does not count towards the time given, so there is
        always a second try.
        """
        self._began = self._began if self.failures else self._clock()

    def pause_s(self, error: Exception, given_s: float) -> float:
        """Seconds to wait before the next try. Raises the error when it is not one to wait for, or
        the time given would be over.
        """
        pause_s = self.next_s()
        if not isinstance(error, LinkLost) or self._clock() - self._began + pause_s > given_s:
            raise error from None
        return pause_s

    @contextmanager
    def pausing(self, error: Exception, given_s: float) -> Iterator[float]:
        """Yield the seconds to wait, like ``pause_s``; the block waits.

        A longer wait does not count towards the time given: the process had no CPU time, which says
        nothing of the server.
        """
        pause_s = self.pause_s(error, given_s)
        until = self._clock() + pause_s
        yield pause_s
        self._began += max(0.0, self._clock() - until)
