"""The logger that websockets is given, in both roles: one that says nothing.

At level DEBUG, and in its reports of bad handshakes, websockets logs request lines and headers; in busmq's protocol the request line holds
the secret. No setting of the user's logging reaches this logger. What is worth telling, our own code logs and counts.
"""

from __future__ import annotations

import logging

WIRE_LOG = logging.Logger("busmq_spark.federation.wire")  # noqa: LOG001  # no configuration of the program may enable it
"""Pass it as ``logger=`` to every ``serve`` and ``connect`` of websockets."""
WIRE_LOG.disabled = True
