"""The logger that websockets is given, in both roles: one that says nothing.

At level DEBUG, and in its reports of bad handshakes, websockets logs request lines and headers; in
busmq's protocol the request line holds the secret. No setting of the user's logging reaches this
logger. Our own code logs and counts the events that matter.
"""

from __future__ import annotations

import logging

# No configuration of the program may enable it
WIRE_LOG = logging.Logger("busmq_spark.federation.wire")  # noqa: LOG001
"""Pass it as ``logger=`` to every ``serve`` and ``connect`` of websockets."""
WIRE_LOG.disabled = True
