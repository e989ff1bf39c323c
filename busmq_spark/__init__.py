"""An ordered message bus on Redis as a source and sink of Spark Structured Streaming.

Importing this package loads nothing else: each name below is loaded when it is first used, so a
producer needs no pyspark and an executor no web sockets. (PEP 562)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus
    from busmq_spark.errors import BusError, Rejected, Released
    from busmq_spark.federation.gate.keyring import Keyring
    from busmq_spark.federation.serve.server import FederationServer
    from busmq_spark.outbox.outbox import Outbox
    from busmq_spark.routing.cloud_event import Event
    from busmq_spark.spark.data_source import BusmqDataSource, register
    from busmq_spark.spark.functions.dead_letters import dead_letters
    from busmq_spark.spark.functions.events import events, to_events
    from busmq_spark.spark.functions.json_columns import json_columns
    from busmq_spark.spark.realtime import realtime, realtime_foreach
    from busmq_spark.spark.tune import tune

__version__ = "0.1.0"

# name -> module. The imports above and __all__ repeat it for type checkers, which cannot read a
# table; a test compares the three.
HOMES = {
    "Bus": "bus.bus",
    "BusError": "errors",
    "BusmqDataSource": "spark.data_source",
    "Event": "routing.cloud_event",
    "FederationServer": "federation.serve.server",
    "Keyring": "federation.gate.keyring",
    "Outbox": "outbox.outbox",
    "Rejected": "errors",
    "Released": "errors",
    "dead_letters": "spark.functions.dead_letters",
    "events": "spark.functions.events",
    "json_columns": "spark.functions.json_columns",
    "realtime": "spark.realtime",
    "realtime_foreach": "spark.realtime",
    "register": "spark.data_source",
    "to_events": "spark.functions.events",
    "tune": "spark.tune",
}

__all__ = [
    "Bus",
    "BusError",
    "BusmqDataSource",
    "Event",
    "FederationServer",
    "Keyring",
    "Outbox",
    "Rejected",
    "Released",
    "__version__",
    "dead_letters",
    "events",
    "json_columns",
    "realtime",
    "realtime_foreach",
    "register",
    "to_events",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        home = import_module(f"{__name__}.{HOMES[name]}")
    except ModuleNotFoundError as error:
        from busmq_spark.extras import missing_package

        raise missing_package(error, f"busmq_spark.{name}") from None
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
