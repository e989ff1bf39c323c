"""The reader of a queue (or subscription): taking the lease, and the error when another reader has
it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from busmq_spark.errors import QueueBusy
from busmq_spark.queue.qualified_queue_names import display_name
from busmq_spark.redis_io.lease_token import LEASE_MS, describe_holder, is_dead, this_machine
from busmq_spark.store.protocol import ReadStore

STOPPING_READER_GRACE_S = 3.0
"""A reader of this machine that is just being stopped may take so long to end."""
LEASE_RETRY_PAUSE_S = 0.2


def acquire_leases(
    store: ReadStore,
    queues: Sequence[str],
    subscription: str,
    token: str,
    siblings: Collection[str] = (),
) -> list[str]:
    """Become the reader of all ``queues``. Waits for a lease that may end (a stopping reader here,
    an unknown one elsewhere). ``siblings``: the tokens of the other readers of the same query,
    which share theirs.

    The result is all queues but those whose source is unreachable. Raises QueueBusy when another
    reader renews its lease.
    """
    started = time.monotonic()
    dead: dict[str, str] = {}
    while True:
        holders = store.lease(queues, subscription, token, dead)
        others = {
            queue: holder
            for queue, holder in holders.items()
            if holder != token and holder not in siblings
        }
        if not others:
            return [queue for queue in queues if queue in holders]
        dead = {queue: holder for queue, holder in others.items() if is_dead(holder)}
        if not dead:
            here = any(f"|{this_machine()}|" in holder for holder in others.values())
            if time.monotonic() - started > (
                STOPPING_READER_GRACE_S if here else LEASE_MS / 1000 + STOPPING_READER_GRACE_S
            ):
                raise busy_error(*next(iter(others.items())), subscription)
            time.sleep(LEASE_RETRY_PAUSE_S)


def busy_error(queue: str, holder: str, subscription: str) -> QueueBusy:
    """The error for a queue that another query reads; ``holder`` is its token, '' where it has gone
    meanwhile.
    """
    what = (
        f"is read by another query as subscription {subscription!r}"
        if subscription
        else "is read by another query"
    )
    what += f" ({describe_holder(holder)})" if holder else ""
    remedy = (
        "Stop that query, or give each query its own option 'subscription', or read with ack=none"
    )
    return QueueBusy(queue=display_name(queue), found=what, remedy=remedy)
