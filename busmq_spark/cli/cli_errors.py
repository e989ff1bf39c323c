"""Errors of the core in the words of the command line: same codes, and a remedy that can be
typed.
"""

from __future__ import annotations

from shlex import quote
from typing import Any

from busmq_spark.errors import BusError, QueueFull, QueueMissing


class _WithShellName(BusError):
    """An error whose text has the name of the queue, quoted for a shell, in a command."""

    def __init__(self, **details: Any) -> None:
        super().__init__(**{**details, "typed": quote(details["queue"])})


class CliQueueMissing(_WithShellName, QueueMissing):
    """The queue does not exist on the servers named."""

    template = (
        "there is no queue {queue!r} on {servers}. List them with: busmq queues; create it with:"
        " busmq push {typed} <message>"
    )


class CliQueueFull(_WithShellName, QueueFull):
    """The queue is at its maxsize."""

    template = (
        "queue {queue!r} holds its maxsize of {maxsize} messages; {stored} of the messages given"
        " were stored, {left} were not. Let a consumer drain it, for example: busmq tail {typed}"
        " --consume"
    )


class MessageMissing(_WithShellName):
    """None of the requested ids is stored."""

    code = "BUSMQ_MESSAGE_MISSING"
    template = (
        "queue {queue!r} does not hold {wanted}; it holds {found}. Acknowledged messages leave the"
        " queue; see: busmq info {typed}"
    )
