"""Places in what a queue remembers that federation servers share out among secrets."""

from __future__ import annotations

from collections.abc import Sequence

from busmq_spark.queue.command_generators import Flow, script
from busmq_spark.queue.keys import QueueKeys, federated_prefix
from busmq_spark.queue.queue import MIN_RECORD_TTL_S


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
