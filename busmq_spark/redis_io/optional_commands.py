"""Commands that a Redis may lack or forbid, and the question whether it evicts queues.

Commands that are only a nicety, and the refusals of a Redis that lacks them or forbids them.

Whether a Redis may remove queues by itself: with any ``maxmemory-policy`` but noeviction it does
so, without an error, when memory runs short.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from busmq_spark.errors import BusError, ConfigError, ServerRefused, Unauthorized
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


POLICY_UNKNOWN = "not known, since the command INFO is refused"


def read_eviction_policy() -> Flow[str]:
    """The ``maxmemory-policy`` of one server."""
    reply = yield from ask_if_allowed("INFO", "memory")
    if not isinstance(reply, bytes):
        return POLICY_UNKNOWN
    return parse_info(reply).get("maxmemory_policy", "noeviction")


def parse_info(reply: bytes) -> dict[str, str]:
    """The lines ``name:value`` of INFO."""
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def check_eviction_policies(policies: Mapping[str, str], *, required: bool) -> None:
    """Warns of each server that evicts, or raises ConfigError where noeviction is ``required``.
    ``policies`` by the masked address.
    """
    for server, found in policies.items():
        if found == "noeviction" or (found == POLICY_UNKNOWN and not required):
            continue
        text = (
            f"the maxmemory-policy of Redis at {server} is {found}: when memory runs short Redis"
            " removes queues and staged rows without an error"
        )
        if required:
            raise ConfigError(
                reason=(
                    f"{text}, and requireNoEviction=true refuses that. Set maxmemory-policy"
                    " noeviction"
                )
            )
        log.warning(
            "%s. Set maxmemory-policy noeviction, or the option requireNoEviction=true to be"
            " refused",
            text,
        )
