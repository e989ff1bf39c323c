"""The data source classes Spark sees. No logic: options and schemas are checked here, the work is
in the readers and writers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from busmq_spark import __version__
from busmq_spark.errors import BusError, ConfigError, EngineError, JarVersionError
from busmq_spark.extras import DeferredImport
from busmq_spark.option_parsing import parse
from busmq_spark.options import ReadOptions, StoreOptions, WriteOptions
from busmq_spark.redis_io.urls import parse_servers
from busmq_spark.spark.compat import freeze_imports
from busmq_spark.spark.error_display import (
    FailingReader,
    MissingJarSource,
    strip_traceback,
    without_traceback,
)
from busmq_spark.spark.schema import (
    FIELDS_COLUMN,
    LINKED_SCHEMA,
    SOURCE_SCHEMA,
    TIME_COLUMN,
    TIMESTAMP_COLUMN_NAME,
    TOPIC_COLUMNS,
    check_source_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from busmq_spark.spark.read.batch_reader import BatchReader
    from busmq_spark.spark.read.stream_reader import StreamReader
    from busmq_spark.spark.write.job_outcomes import JobOutcomeColumns
    from busmq_spark.spark.write.sink_columns import SinkColumns
    from busmq_spark.spark.write.writers import BatchWriter, StreamWriter


VERSION_OPTION = "_busmqjarversion"
"""In what the jar hands over to the data source in Python: the version of the package that the jar
was made with.
"""


_stream_reader: DeferredImport[type[StreamReader]] = DeferredImport(
    "spark.read.stream_reader", "StreamReader"
)
_batch_reader: DeferredImport[type[BatchReader]] = DeferredImport(
    "spark.read.batch_reader", "BatchReader"
)
_check_job_field_names: DeferredImport[Callable[..., object]] = DeferredImport(
    "spark.read.tasks", "check_job_field_names"
)
_sink_columns: DeferredImport[type[SinkColumns]] = DeferredImport(
    "spark.write.sink_columns", "SinkColumns"
)
_stream_writer: DeferredImport[type[StreamWriter]] = DeferredImport(
    "spark.write.writers", "StreamWriter"
)
_batch_writer: DeferredImport[type[BatchWriter]] = DeferredImport(
    "spark.write.writers", "BatchWriter"
)
_outcome_columns_type: DeferredImport[type[JobOutcomeColumns]] = DeferredImport(
    "spark.write.job_outcomes", "JobOutcomeColumns"
)
_check_links: DeferredImport[Callable[[StoreOptions], None]] = DeferredImport(
    "spark.stores", "check_links"
)

Options = TypeVar("Options", bound=StoreOptions)
UNUSED_BY_SETTLE = (
    "delivery",
    "sinkId",
    "onChangedBatch",
    "partitions",
    "createQueue",
    "maxsize",
    "truncate",
)
"""Options of the sink that say how messages are appended, and to which queue; batchId needs
sinkId.
"""


@without_traceback
class BusmqDataSource(DataSource):
    """``format("busmq")``: queues as a streaming or batch source and sink.

    Columns of the source: ``queue string, id long, value binary``, with federation.url
    ``source string``, with includeTopic ``topic string, partition int``, with includeTimestamp
    ``timestamp``, with jobFields ``fields map<string,binary>``. The sink needs ``value`` (string or
    binary) and takes ``queue`` (string), or for topics ``topic``, ``partition`` and ``key``. The
    options are the fields of ``busmq_spark.options.ReadOptions`` and ``WriteOptions``.
    """

    @classmethod
    def name(cls) -> str:
        return "busmq"

    def __init__(self, options: dict[str, str]) -> None:
        jar = _option_text(options, VERSION_OPTION)
        if jar and jar != __version__:
            found = (
                f"the jar on the class path of Spark is of version {jar}, and the Python package"
                f" busmq_spark of version {__version__}"
            )
            raise strip_traceback(JarVersionError(found=found))
        super().__init__(
            {name: text for name, text in options.items() if name.lower() != VERSION_OPTION}
            if jar
            else options
        )

    def schema(self) -> str:
        """The columns. Spark asks for them at ``load()``, so that what is wrong with the options is
        said there. A table has no options yet.
        """
        if self.options:
            _refuse_table_options(self.options)
            options = _check_options(parse(ReadOptions, self.options))
            columns = _source_columns(options, topic=options.include_topic)
            return f"{columns}, {TIME_COLUMN}" if options.include_timestamp else columns
        return SOURCE_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _batch_reader.get()(self._read_options(schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            options = self._read_options(schema)
            if options.ending or options.ending_timestamp:
                reason = (
                    "endingOffsets and endingTimestamp end a batch read, and a stream has no end;"
                    " use spark.read, or trigger(availableNow=True)"
                )
                raise ConfigError(reason=reason)
            return _stream_reader.get()(options, schema)
        except BusError as error:
            return FailingReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        _refuse_table_options(self.options)
        options = _check_options(parse(WriteOptions, self.options))
        if options.settle:
            if overwrite:
                raise ConfigError(
                    reason=(
                        "mode overwrite deletes messages, and with settle rows are outcomes of"
                        " jobs; use mode append"
                    )
                )
            outcomes = _outcome_columns(schema, options, self.options).look_up_queue(options)
            return _batch_writer.get()(options, outcomes, overwrite=False)
        return _batch_writer.get()(
            options,
            _sink_columns.get().of(schema, options.queue, options.topic),
            overwrite=overwrite,
        )

    def streamWriter(
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:  # Spark passes these by name
        _refuse_unlogged_batches(self.options)
        options = _check_options(parse(WriteOptions, self.options))
        if options.settle:
            outcomes = _outcome_columns(schema, options, self.options, needs_id=True)
            return _stream_writer.get()(options, outcomes)
        columns = _sink_columns.get().of(schema, options.queue, options.topic)
        return _stream_writer.get()(
            options, columns, _option_text(self.options, "checkpointLocation")
        )

    def _read_options(self, schema: StructType) -> ReadOptions:
        _refuse_table_options(self.options)
        options = _check_options(parse(ReadOptions, self.options))
        check_source_schema(schema, _source_columns(options, topic=bool(options.topic)))
        if options.include_timestamp and TIMESTAMP_COLUMN_NAME not in schema.names:
            reason = (
                "includeTimestamp=true asks for a column timestamp, which the schema does not have;"
                " name it there, or leave the option out"
            )
            raise ConfigError(reason=reason)
        return options


def _source_columns(options: ReadOptions, *, topic: bool) -> str:
    """The columns of the source."""
    columns = [LINKED_SCHEMA if options.links else SOURCE_SCHEMA]
    if options.job_fields:
        _check_job_field_names.get()(options.job_fields)
        columns.append(FIELDS_COLUMN)
    return ", ".join([*columns, *([TOPIC_COLUMNS] if topic else [])])


def _outcome_columns(
    schema: StructType, options: WriteOptions, given: Mapping[str, str], *, needs_id: bool = False
) -> JobOutcomeColumns:
    if unused := [name for name in UNUSED_BY_SETTLE if _option_text(given, name)]:
        reason = (
            f"option {unused[0]!r} is for messages, and with settle rows are outcomes of jobs: each"
            " is written once, by its task; leave it out"
        )
        raise ConfigError(reason=reason)
    if options.links or options.topic:
        what = (
            "a federation server has no jobs"
            if options.links
            else "jobs are messages of one queue, not of a topic"
        )
        raise ConfigError(
            reason=(
                f"option 'settle' writes outcomes of jobs to Redis, and {what}; leave one of"
                " them out"
            )
        )
    return _outcome_columns_type.get().of(schema, options.queue, needs_id=needs_id)


def _refuse_table_options(given: Mapping[str, str]) -> None:
    """Spark shows the OPTIONS of a table, with a prefix, to the ``schema`` of a source in Python at
    CREATE TABLE, and none to a reader or writer.
    """
    if not given or any(name.lower().startswith("option.") for name in given):
        found = "no option is given; if they are OPTIONS of a table: " if not given else ""
        raise ConfigError(
            reason=(
                f"{found}Spark hands the OPTIONS of a table to no reader or writer in Python. Leave"
                " them out and give them in each statement, as in FROM t WITH (subscribe = …); or"
                " use CREATE TEMPORARY VIEW, or, with the jar, CREATE TABLE … USING"
                " `busmq-realtime`"
            )
        )


def _refuse_unlogged_batches(given: Mapping[str, str]) -> None:
    """Spark itself has our sink on no list for this, but that check can be overridden."""
    if _option_text(given, "asyncProgressTrackingEnabled").lower() == "true":
        raise ConfigError(
            reason=(
                'format("busmq") does not write with asyncProgressTrackingEnabled=true, where a'
                " batch runs before it is logged and may hold other rows when it is run again; set"
                ' it to false, or use format("busmq-realtime") with delivery=at-least-once'
            )
        )


def _why_no_java() -> dict[str, str]:
    release = pyspark.__version__
    if tuple(int(part) for part in release.split(".")[:2]) < (4, 1):
        return {
            "reason": f"this is Spark {release}, and the engine in Java needs Spark 4.1 or later",
            "remedy": "Leave engine out",
        }
    remedy = (
        "Call busmq_spark.tune(SparkSession.builder) before the first session, or start Spark with"
        " --jars $(busmq jar); or leave engine out"
    )
    return {
        "reason": "the jar that has it is not on the class path of this Spark",
        "remedy": remedy,
    }


def _option_text(options: Mapping[str, str], name: str) -> str:
    return next((text for given, text in options.items() if given.lower() == name.lower()), "")


def _check_options(options: Options) -> Options:
    """The options with addresses and secrets spelled out and checked: an executor does not have the
    driver's environment.
    """
    freeze_imports()
    if options.engine == "java":  # with the jar Java has answered
        raise EngineError(engine="java", **_why_no_java())
    if options.links:
        _check_links.get()(options)
    secrets = tuple(
        (link, secret) for link, _ in options.links if (secret := options.secret_of(link))
    )
    if not options.has_redis:
        return replace(options, link_secrets=secrets)
    parse_servers(options)
    return replace(options, url=options.address, link_secrets=secrets)


def register(spark: SparkSession) -> None:
    """Make ``format("busmq")`` known to a session whose cluster does not have the wheel installed
    (Databricks, Spark Connect, --py-files).

    The package then travels with each query, by value. Not needed where the wheel is installed:
    Spark finds it by itself.
    """
    from pyspark import cloudpickle

    from busmq_spark.queue.scripts import load_all

    load_all()
    # Untyped in pyspark
    cloudpickle.register_pickle_by_value(sys.modules[__name__.partition(".")[0]])  # type: ignore[no-untyped-call]
    spark.dataSource.register(BusmqDataSource)
    spark.dataSource.register(MissingJarSource)  # Spark prefers one in Java of the same name
