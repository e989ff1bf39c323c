"""The logger that websockets is given, in both roles: one that says nothing.

At level DEBUG, and in its reports of bad handshakes, websockets logs request lines and headers; in busmq's protocol the request line holds
the secret. No setting of the user's logging reaches this logger. What is worth telling, our own code logs and counts.
"""

from __future__ import annotations

import logging


class _SilentLogger(logging.Logger):
    """Not known to ``logging.getLogger``, without handlers, off for every level."""

    def isEnabledFor(self, _level: int) -> bool:  # the name that logging gave it
        return False

    def handle(self, record: logging.LogRecord) -> None:
        """Drop it."""


WIRE_LOG: logging.Logger = _SilentLogger("busmq_spark.federation.wire")
"""Pass it as ``logger=`` to every ``serve`` and ``connect`` of websockets."""
