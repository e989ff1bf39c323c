"""Who reads a queue now: the leases of running queries."""

from __future__ import annotations

from busmq_spark.cli.safe import duration
from busmq_spark.cli.target import Place
from busmq_spark.core.flow import command
from busmq_spark.core.state import subscriptions


def holders(place: Place) -> list[str]:
    """One text for each query that holds a lease on the queue or on one of its subscriptions. A dead one's ends by itself."""
    names = ["", *place.link.run(subscriptions([place.keys]))[0]]
    replies = place.link.execute([command("PTTL", place.keys.lease(name)) for name in names])
    return [
        f"{f'subscription {name}, ' if name else ''}lease renewed or over within {duration(left_ms / 1000 + 1)}"
        for name, left_ms in zip(names, replies, strict=True)
        if left_ms >= 0
    ]
