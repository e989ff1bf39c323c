"""Dead letters of a pipeline: messages that it gives up, in the form of groups/dead_letter.py, in
Spark's own functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from busmq_spark.errors import ConfigError
from busmq_spark.errors.foreign import MAX_ERROR_CHARACTERS
from busmq_spark.groups.dead_letter import DEAD_LETTER_TYPE, LINKED_SOURCE_FORMAT, SOURCE_PREFIX
from busmq_spark.option_parsing import LOCAL_SOURCE
from busmq_spark.routing.cloud_event import SPEC_VERSION
from busmq_spark.spark.functions.json_text_expressions import raise_bus_error
from busmq_spark.spark.schema import refuse_equal_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


DEFAULT_GROUP = "spark"
MESSAGE_COLUMNS = {"queue": ("string",), "id": ("long",), "value": ("binary", "string")}
"""Columns of a message, and their types."""
_TIME_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSxxx"
_CONTROL = r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+"


def dead_letters(
    messages: DataFrame,
    condition: Column | str,
    reason: Column | str,
    *,
    group: str = DEFAULT_GROUP,
    into: str | None = None,
) -> DataFrame:
    """Return the messages for which ``condition`` is true as dead letters: ``queue``, ``id`` and
    ``value`` for the sink, beside the other rows of a query.

    ``messages`` have ``queue``, ``id`` and ``value`` of the source, and what ``condition`` (a
    column, or SQL) asks about. ``reason`` is a text or a column; ``group`` is who gives up: the
    name of the query, say. They go to the queue ``into``, or to ``<queue>.dead`` where it is None,
    for ``busmq dead list|show|replay|purge``. If ``messages`` have ``source``, too, dead letters
    name the federation link over which they were read. Raises ConfigError for messages without
    these columns.

        late = dead_letters(messages, "id % 2 = 1", "odd")
        rest.unionByName(late).writeStream.format("busmq")...
    """
    from pyspark.sql.functions import (
        coalesce,
        col,
        concat,
        current_timestamp,
        expr,
        lit,
        struct,
        to_json,
        when,
    )

    _check_arguments(messages, group, into)
    dead = messages.where(expr(condition) if isinstance(condition, str) else condition)
    origin, id, now = col("queue"), col("id").cast("string"), current_timestamp()
    source = col("source") if "source" in messages.columns else lit(LOCAL_SOURCE)
    link = when(source != LOCAL_SOURCE, source)
    before, after = (lit(part) for part in LINKED_SOURCE_FORMAT.split("{link}"))
    text = col("value").cast("string")
    said = {
        "specversion": lit(SPEC_VERSION),
        "id": concat(
            lit(f"{group}/"), id, lit("/"), expr("cast(unix_millis(current_timestamp()) as string)")
        ),
        "source": concat(
            coalesce(concat(before, link, after), lit(SOURCE_PREFIX)), _percent_encoded(origin)
        ),
        "type": lit(DEAD_LETTER_TYPE),
        "time": _format_time(now),
        "datacontenttype": (
            when(_is_text(text), lit("text/plain")).otherwise(lit("application/octet-stream"))
        ),
        "queue": origin,
        "originalid": id,
        "group": lit(group),
        "tries": lit(1),
        "error": _on_one_line(
            coalesce(lit(reason) if isinstance(reason, str) else reason.cast("string"), lit(""))
        ),
        "firsttime": _format_time(now),
        "lasttime": _format_time(now),
        "link": link,
        "data": when(_is_text(text), text),
        "data_base64": when(~_is_text(text), col("value").cast("binary")),
    }
    value = to_json(
        struct(*(column.alias(name) for name, column in said.items())), {"ignoreNullFields": "true"}
    )
    itself = concat(
        lit("the dead-letter queue of '"),
        origin,
        lit("' is that queue itself; name another with into=…"),
    )
    to = (
        concat(origin, lit(".dead"))
        if into is None
        else when(origin == into, raise_bus_error(itself, ConfigError)).otherwise(lit(into))
    )
    return dead.select(to.alias("queue"), "id", value.alias("value"))


def _check_arguments(messages: DataFrame, group: str, into: str | None) -> None:
    refuse_equal_names(messages.columns)
    types = {column.name: column.dataType.typeName() for column in messages.schema.fields}
    for name, wanted in MESSAGE_COLUMNS.items():
        if types.get(name) not in wanted:
            found = f"is {types[name]}" if name in types else "is missing"
            raise ConfigError(
                reason=(
                    f"column {name!r} {found}; a dead letter is made of queue (string), id (long)"
                    " and value of a message"
                )
            )
    for name, text in (("group", group), ("into", into if into is not None else "a default")):
        if not (isinstance(text, str) and text):  # type: ignore[redundant-expr]  # what users give
            raise ConfigError(reason=f"{name} is {text!r}; expected text that is not empty")


def _is_text(text: Column) -> Column:
    from pyspark.sql.functions import is_valid_utf8

    return is_valid_utf8(text)


def _format_time(time: Column) -> Column:
    from pyspark.sql.functions import date_format

    return date_format(time, _TIME_FORMAT)


def _on_one_line(text: Column) -> Column:
    from pyspark.sql.functions import regexp_replace

    return regexp_replace(text.substr(1, MAX_ERROR_CHARACTERS), _CONTROL, " ")


def _percent_encoded(text: Column) -> Column:
    """Encode like ``urllib.parse.quote(text, safe="")``."""
    from pyspark.sql.functions import lit, replace, url_encode

    found = url_encode(text)
    for form, percent in (("+", "%20"), ("*", "%2A"), ("%7E", "~")):
        found = replace(found, lit(form), lit(percent))
    return found
