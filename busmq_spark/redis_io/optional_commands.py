"""Commands that are only a nicety, and the refusals of a Redis that lacks them or forbids them."""

from __future__ import annotations

import logging
import re

from busmq_spark.errors import BusError, ServerRefused, Unauthorized
from busmq_spark.queue.command_generators import Flow, command

CONNECTION_NAME = "busmq_spark"
_REFUSED_ANSWER = re.compile(
    r"(?:the '|unknown command ['`])(?:ping|p?unsubscribe)['`|]", re.IGNORECASE
)
_told: set[tuple[str, str]] = set()
log = logging.getLogger("busmq_spark")


def is_refused_command(error: BusError) -> bool:
    """Whether Redis refuses a command as such: it is renamed, or the user lacks the right to it."""
    if isinstance(error, Unauthorized):
        return "no permissions to run" in str(error.details.get("reason"))
    return type(error) is ServerRefused


def is_refused_nicety(reply: Exception) -> bool:
    """Whether an error among the replies of a subscription only refuses PING or UNSUBSCRIBE."""
    return bool(_REFUSED_ANSWER.search(str(reply)))


def ask_if_allowed(*words: str) -> Flow[object]:
    """Return the reply to a command, or None where Redis refuses it."""
    try:
        return (yield command(*words))
    except BusError as error:
        if not is_refused_command(error):
            raise
        tell_once(str(error.details.get("url")), words[0], "an answer is left out")
        return None


def tell_once(server: str, name: str, loss: str) -> None:
    """Log that a server refuses a command, once for each server and command."""
    if (server, name) not in _told:
        _told.add((server, name))
        log.debug("Redis at %s refuses the command %s: %s", server, name, loss)
