"""Pushes of an outbox to a queue: appended once, however often they are sent (push_from.lua).

Rule 1. A sender numbers its messages upwards and sends those for one queue in that order; numbers
        that are for other queues are left out.
Rule 2. The queue remembers the last number of each sender, for SENDER_TTL_S, beyond its own life: a
        message that is sent again goes into no other life of the queue either.

Places in what a queue remembers that federation servers share out among secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from busmq_spark.errors import QueueMissing
from busmq_spark.queue.command_generators import Arg, Flow, command, script
from busmq_spark.queue.keys import QueueKeys, federated_prefix
from busmq_spark.queue.message import chunks
from busmq_spark.queue.queue import MIN_RECORD_TTL_S

SENDER_TTL_S = 30 * 24 * 3600
"""Seconds for which a silent sender is remembered. A message whose confirmation got lost, and that
is sent again after more than that, is there twice.
"""


def push_from(
    keys: QueueKeys, sender: str, sequences: Sequence[int], values: Sequence[bytes]
) -> Flow[tuple[int, int]]:
    """Append the messages of a sender that were not appended before; ``sequences`` rise, and number
    the ``values``. Safe to repeat.

    Result: how many of them, from the first on, are there now, and the maxsize that was in the way
    (0: none). Raises QueueMissing.
    """
    done = 0
    names = (*keys.peer_keys, keys.senders, *keys.appending[len(keys.peer_keys) :])
    for chunk in chunks(values):
        words: list[Arg] = [keys.available, sender, SENDER_TTL_S]
        for first, end in _consecutive_runs(sequences[done : done + len(chunk)]):
            words += (sequences[done + first], end - first, *chunk[first:end])
        _, there = yield script("push_from", names, words)
        if there < 0:
            raise QueueMissing(queue=keys.name)
        done += there
        if there < len(chunk):
            return done, int((yield command("HGET", keys.metadata, "maxsize")) or 0)
    return done, 0


def _consecutive_runs(sequences: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the bounds of runs of consecutive numbers."""
    begin = 0
    if sequences[-1] - sequences[0] != len(sequences) - 1:
        for at in range(1, len(sequences)):
            if sequences[at] != sequences[at - 1] + 1:
                yield begin, at
                begin = at
    yield begin, len(sequences)


def has_place(key: str, field: str, secret: str, most: int, older_than_s: int = 0) -> Flow[bool]:
    """Whether a field of a hash is there, or a secret has fewer than ``most`` of its fields."""
    args = (
        field,
        most,
        federated_prefix(secret),
        federated_prefix(secret)[:-1] + "~",
        older_than_s,
    )
    return bool((yield script("places", (key,), args)))


def claim_staged(
    keys: QueueKeys, attempts: Sequence[str], owner: str, secret: str, most: int
) -> Flow[list[int]]:
    """Return the claim on each staged list: 1 the peer's, 0 no list, -1 another's, -2 its secret
    has its share.

    The peer's from now on where there is none; with ``most`` 0 none is made its own.
    """
    stages = keys.stages(federated_prefix(secret)[:-1])
    found: list[int] = yield script(
        "claim_staged", (stages,), (owner, most, MIN_RECORD_TTL_S, keys.stage(""), *attempts)
    )
    return found
