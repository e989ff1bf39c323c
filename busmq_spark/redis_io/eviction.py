"""Whether a Redis may remove queues by itself: with any ``maxmemory-policy`` but noeviction it does
so, without an error, when memory runs short.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from busmq_spark.errors import ConfigError
from busmq_spark.queue.command_generators import Flow
from busmq_spark.redis_io.optional_commands import ask_if_allowed

POLICY_UNKNOWN = "not known, since the command INFO is refused"
log = logging.getLogger("busmq_spark")


def read_eviction_policy() -> Flow[str]:
    """The ``maxmemory-policy`` of one server."""
    reply = yield from ask_if_allowed("INFO", "memory")
    if not isinstance(reply, bytes):
        return POLICY_UNKNOWN
    found = dict(
        line.split(":", 1) for line in reply.decode("utf-8", "replace").splitlines() if ":" in line
    )
    return found.get("maxmemory_policy", "noeviction")


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
