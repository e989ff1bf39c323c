"""The objects of a bus as peers see them: for each type a table of methods, and nothing that is not in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from busmq_spark.federation.serve.exposed.channel import ExposedChannel
from busmq_spark.federation.serve.exposed.persisted import ExposedPersisted
from busmq_spark.federation.serve.exposed.pubsub import ExposedPubsub
from busmq_spark.federation.serve.exposed.queue import ExposedQueue
from busmq_spark.federation.serve.exposed.service import ExposedService

if TYPE_CHECKING:
    from busmq_spark.federation.npm_wire.creation import Creation, Type
    from busmq_spark.federation.serve.exposed.base import Exposed
    from busmq_spark.federation.serve.session import Session

KINDS: dict[Type, type[Exposed]] = {
    "queue": ExposedQueue,
    "channel": ExposedChannel,
    "pubsub": ExposedPubsub,
    "persistify": ExposedPersisted,
    "service": ExposedService,
}


def expose(session: Session, made: Creation) -> Exposed:
    """The object that a creation message asks for. Nothing is sent to Redis yet."""
    return KINDS[made.type](session, made)
