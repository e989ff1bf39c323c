"""The settings with which Spark's real-time mode (``trigger(realTime=…)``, Spark 4.1 and later)
accepts ``format("busmq")`` in Java.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import version
from inspect import signature
from typing import TYPE_CHECKING, Any, overload

from busmq_spark.errors import ConfigError
from busmq_spark.option_parsing import parse
from busmq_spark.options import WriteOptions
from busmq_spark.spark.java_runtime import add_jar, conf_file_has_word, require_jar, starts_java
from busmq_spark.spark.tune import tune

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

LOG = logging.getLogger("busmq_spark")

REALTIME_SOURCE = "busmq.spark.BusmqRealtimeProvider"

SESSION_SETTINGS = {
    # Spark has a fixed list of the sinks it takes in this mode, its own, and ours cannot be added
    # to it. Without the list it does not refuse operators either that hold rows back until a batch
    # ends, such as a Python UDF.
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    # This mode goes on only with checkpoints of the second format, so other triggers should write
    # that one, too.
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # The one state store that can write the second format.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
JAVA_SETTINGS = {
    # Spark takes 4 MB for the plan of every batch and 1 MB for its result, however small they are.
    # In a heap of a few GB that is huge to G1, which then marks the whole heap, twice, just when
    # the next batch is to begin: 100 ms of a core each. In regions of 4 MB it is not huge.
    "spark.broadcast.blockSize": "1m",
    "spark.driver.defaultJavaOptions": "-XX:G1HeapRegionSize=4m",
    "spark.executor.defaultJavaOptions": "-XX:G1HeapRegionSize=4m",
}
"""Settings where Python starts Java: a running Java has its options."""
QUERY_OPTIONS = {  # from Spark 4.3 on: those before refuse it together with this trigger
    # The logs of a batch are written beside the next one: else every batch begins with a pause of
    # tens of milliseconds. A crash repeats what was not yet logged, which this mode does anyway.
    "asyncProgressTrackingEnabled": "true",
    # Spark has a fixed list of sinks for that, too.
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
}


@overload
def realtime(target: SparkSession.Builder) -> SparkSession.Builder: ...
@overload
def realtime(target: DataStreamWriter, batch: str | None = None) -> DataStreamWriter: ...
def realtime(target: Any, batch: str | None = None) -> Any:
    """Make a session builder, or the writer of a streaming query, ready for real-time mode, and
    return it.

    Settings of the builder stay. A builder gets the jar and the settings of ``tune``, too.
    ``batch``, for a writer: how long a batch lasts, such as ``60 seconds``; the same as
    ``trigger(realTime=…)``, which PySpark 4.1 lacks.

        spark = realtime(SparkSession.builder.master("local[4]")).getOrCreate() rows =
        spark.readStream.format("busmq").option("subscribe", "orders").load() writer =
        rows.select("value").writeStream.format("busmq").option("queue",
        "out").option("checkpointLocation", "/data/c") realtime(writer, "60 seconds").start()
    """
    release = version("pyspark")
    major_minor = tuple(int(part) for part in release.split(".")[:2])
    if major_minor < (4, 1):
        raise ConfigError(
            reason=(
                f"real-time mode came with Spark 4.1, and this is Spark {release}; install pyspark"
                " 4.1 or later"
            )
        )
    if hasattr(target, "getOrCreate"):
        if batch is not None:
            raise ConfigError(
                reason=(
                    f"a batch of {batch!r} is for the writer of a query, and this is the builder of"
                    " a session; leave it out here"
                )
            )
        return _configure_session(target)
    writer = target.outputMode("update").options(**QUERY_OPTIONS if major_minor >= (4, 3) else {})
    return writer if batch is None else _with_realtime_trigger(writer, batch)


def realtime_foreach(writer: DataStreamWriter, options: Mapping[str, object]) -> DataStreamWriter:
    """Let a streaming query write its rows into queues through Spark's foreach, and return its
    writer.

    Real-time mode takes that with no check of Spark turned off; a session needs the jar only. At
    least once, in order. The options and columns are the sink's. Not over Spark Connect.

        writer = rows.select("value").writeStream.option("checkpointLocation", "/data/c")
        realtime(realtime_foreach(writer, {"queue": "out"}), "60 seconds").start()
    """
    from pyspark import SparkContext

    texts = {name: str(value) for name, value in options.items()}
    parse(WriteOptions, texts)
    _refuse_spark_without_jar(str(require_jar()))
    assert SparkContext._jvm is not None, "a writer comes from a session"
    writer._jwrite.foreach(SparkContext._jvm.busmq.spark.BusmqForeachWriter(texts))
    return writer.outputMode("update")


def _with_realtime_trigger(writer: Any, batch: str) -> Any:
    from pyspark import SparkContext

    if "realTime" in signature(type(writer).trigger).parameters:
        return writer.trigger(realTime=batch)
    if not hasattr(writer, "_jwrite"):
        raise ConfigError(
            reason=(
                f"PySpark {version('pyspark')} cannot ask for real-time mode over Spark Connect;"
                " install pyspark 4.2 or later"
            )
        )
    assert SparkContext._jvm is not None, "a writer comes from a session"
    writer._jwrite = writer._jwrite.trigger(
        SparkContext._jvm.org.apache.spark.sql.streaming.Trigger.RealTime(batch)
    )
    return writer


def _configure_session(builder: SparkSession.Builder) -> SparkSession.Builder:
    jar = require_jar()
    _refuse_spark_without_jar(str(jar))
    add_jar(builder, jar)
    for name, value in {**SESSION_SETTINGS, **_java_settings(builder)}.items():
        if name not in builder._options:
            builder.config(name, value)
    LOG.warning(
        "real-time mode: Spark's list of sinks and operators is off"
        " (realTimeMode.allowlistCheck=false), since our sink cannot be on it"
    )
    return tune(builder)


def _java_settings(builder: SparkSession.Builder) -> dict[str, str]:
    """JAVA_SETTINGS, but for what the defaults of this installation say: the builder would win over
    them.
    """
    if not starts_java(builder):
        return {}
    return {
        name: value
        for name, value in JAVA_SETTINGS.items()
        if not conf_file_has_word("spark-defaults.conf", name)
    }


def _refuse_spark_without_jar(jar: str) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkContext

    jvm = SparkContext._jvm
    if jvm is None:
        return
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(REALTIME_SOURCE)
    except Py4JJavaError as error:
        raise ConfigError(
            reason=(
                "a Spark without the jar runs in this process, and none can be added to it; call"
                f" realtime before the first session, or start that Spark with --jars {jar}"
            )
        ) from error
