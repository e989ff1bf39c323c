"""The current readers of a queue: the leases of running queries. A lease outlives its query by some
seconds; dead holders are marked if known.
"""

from __future__ import annotations

from collections.abc import Sequence

from busmq_spark.cli.queue_lookup import LocatedQueue
from busmq_spark.cli.terminal_text import format_duration
from busmq_spark.queue.command_generators import RedisCall, command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.reader_operations import subscriptions
from busmq_spark.redis_io.lease_token import is_dead


def lease_calls(keys: QueueKeys, names: Sequence[str]) -> list[RedisCall]:
    """Return the calls that look up the leases of these subscriptions ('' is a reader without one);
    two calls each.
    """
    return [
        call
        for name in names
        for call in (command("GET", keys.lease(name)), command("PTTL", keys.lease(name)))
    ]


def live_holders(names: Sequence[str], replies: Sequence[bytes | int | None]) -> dict[str, int]:
    """Subscription → milliseconds left, of the holders that may be alive."""
    return {
        name: int(left_ms)
        for name, token, left_ms in zip(names, replies[0::2], replies[1::2], strict=True)
        if isinstance(token, bytes)
        and left_ms is not None
        and int(left_ms) >= 0
        and not is_dead(token.decode("utf-8", "replace"))
    }


def describe_holders(place: LocatedQueue) -> list[str]:
    """Return one text for each query that holds a lease on the queue or on one of its
    subscriptions.
    """
    names = ["", *place.link.run(subscriptions([place.keys]))[0]]
    held = live_holders(names, place.link.execute(lease_calls(place.keys, names)))
    return [
        f"{f'subscription {name}, ' if name else ''}its lease is renewed or over within"
        f" {format_duration(left_ms / 1000 + 1)}"
        for name, left_ms in held.items()
    ]
