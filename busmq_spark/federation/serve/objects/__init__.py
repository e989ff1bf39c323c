"""The objects of a bus as peers see them: for each type a table of methods, and nothing that is not
in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from busmq_spark.federation.serve.objects.messaging import (
    ServedChannel,
    ServedPubsub,
    ServedService,
)
from busmq_spark.federation.serve.objects.persisted import ServedPersisted
from busmq_spark.federation.serve.objects.queue import ServedQueue

if TYPE_CHECKING:
    from busmq_spark.federation.npm_wire.channels import ObjectCreationMessage, ObjectType
    from busmq_spark.federation.serve.objects.base import ServedObject
    from busmq_spark.federation.serve.peer import PeerChannel

SERVED_CLASS_OF_KIND: dict[ObjectType, type[ServedObject]] = {
    "queue": ServedQueue,
    "channel": ServedChannel,
    "pubsub": ServedPubsub,
    "persistify": ServedPersisted,
    "service": ServedService,
}


def make_served_object(peer: PeerChannel, made: ObjectCreationMessage) -> ServedObject:
    """The object that a creation message asks for. Nothing is sent to Redis yet."""
    return SERVED_CLASS_OF_KIND[made.type](peer, made)
