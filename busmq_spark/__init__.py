"""An ordered message bus on Redis as a source and sink of Spark Structured Streaming.

Importing this package loads nothing else: each name below is loaded when it is first used, so a
producer needs no pyspark and an executor no web sockets. (PEP 562)
"""

from __future__ import annotations

from functools import cache as _cache
from typing import TYPE_CHECKING, Any

# The public names: type checkers read this block, and so does ``_homes`` at the first use of one.
if TYPE_CHECKING:
    from busmq_spark.bus.base_persisted_object import PersistedDataclass as PersistedDataclass
    from busmq_spark.bus.base_persisted_object import PersistedDict as PersistedDict
    from busmq_spark.bus.bus import Bus as Bus
    from busmq_spark.bus.channel import Channel as Channel
    from busmq_spark.bus.jobs.job import Job as Job
    from busmq_spark.bus.jobs.jobs import Jobs as Jobs
    from busmq_spark.bus.jobs.worker import Worker as Worker
    from busmq_spark.bus.pubsub import Pubsub as Pubsub
    from busmq_spark.bus.queue.ordered_group import OrderedGroup as OrderedGroup
    from busmq_spark.bus.queue.queue import Queue as Queue
    from busmq_spark.bus.queue.shared_group import SharedGroup as SharedGroup
    from busmq_spark.bus.service import Service as Service
    from busmq_spark.bus.topics.member import Member as Member
    from busmq_spark.bus.topics.topic import Topic as Topic
    from busmq_spark.bus.topics.topic import TopicsConsumer as TopicsConsumer
    from busmq_spark.errors import BusError as BusError
    from busmq_spark.errors import ConfigError as ConfigError
    from busmq_spark.errors import FederationLost as FederationLost
    from busmq_spark.errors import FederationRefused as FederationRefused
    from busmq_spark.errors import LinkLost as LinkLost
    from busmq_spark.errors import MessageRefused as MessageRefused
    from busmq_spark.errors import QueueBusy as QueueBusy
    from busmq_spark.errors import QueueFull as QueueFull
    from busmq_spark.errors import QueueMissing as QueueMissing
    from busmq_spark.errors import Rejected as Rejected
    from busmq_spark.errors import Released as Released
    from busmq_spark.errors import RequestFailed as RequestFailed
    from busmq_spark.errors import RequestTimeout as RequestTimeout
    from busmq_spark.errors import StateError as StateError
    from busmq_spark.errors import TopicMissing as TopicMissing
    from busmq_spark.errors.bus import JobFailed as JobFailed
    from busmq_spark.errors.bus import JobTimeout as JobTimeout
    from busmq_spark.errors.bus import WorkTimeout as WorkTimeout
    from busmq_spark.federation.gate.keyring import Keyring as Keyring
    from busmq_spark.federation.serve.server import FederationServer as FederationServer
    from busmq_spark.groups.job import JobOutcome as JobOutcome
    from busmq_spark.outbox.outbox import Outbox as Outbox
    from busmq_spark.queue.message import Message as Message
    from busmq_spark.routing.cloud_event import Event as Event
    from busmq_spark.spark.data_source import BusmqDataSource as BusmqDataSource
    from busmq_spark.spark.data_source import register as register
    from busmq_spark.spark.functions.dead_letters import dead_letters as dead_letters
    from busmq_spark.spark.functions.events import events as events
    from busmq_spark.spark.functions.events import to_events as to_events
    from busmq_spark.spark.functions.json_columns import json_columns as json_columns
    from busmq_spark.spark.observe import observe as observe
    from busmq_spark.spark.realtime import realtime as realtime
    from busmq_spark.spark.realtime import realtime_foreach as realtime_foreach
    from busmq_spark.spark.tune import tune as tune

__version__ = "0.1.0"


@_cache
def _homes() -> dict[str, str]:
    """The module of each public name."""
    import ast
    from importlib.util import find_spec

    loader: Any = getattr(find_spec(__name__), "loader", None)
    block = next(
        node for node in ast.parse(loader.get_source(__name__)).body if isinstance(node, ast.If)
    )
    return {
        each.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name.startswith("_") or name not in _homes():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        home = import_module(_homes()[name])
    except ModuleNotFoundError as error:
        from busmq_spark.extras import missing_package

        raise missing_package(error, f"busmq_spark.{name}") from None
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*_homes(), "__version__"])
