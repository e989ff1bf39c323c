"""Events, CloudEvents 1.0 in JSON, as columns: what routing/cloud_event.py decodes, in Spark's own
functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from busmq_spark.routing.cloud_event import SPEC_VERSION
from busmq_spark.spark.json_text_expressions import all_of, is_json, json_string
from busmq_spark.spark.schema import refuse_equal_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REQUIRED_ATTRIBUTES = ("id", "source", "type")
TEXT_ATTRIBUTES = ("subject", "datacontenttype", "dataschema")
EVENT_COLUMNS = (
    *REQUIRED_ATTRIBUTES,
    "time",
    *TEXT_ATTRIBUTES,
    "data",
    "data_base64",
    "extensions",
)
RESERVED_ATTRIBUTES = ("specversion", *EVENT_COLUMNS[:-1])
"""Members that are no extensions."""
MESSAGE_COLUMN_PREFIX = "message_"
EXTENSION_NAME = "^[a-z0-9]+$"
JSON_CONTENT_TYPE = r"(?i)^[^;]*[/+]json\s*(;.*)?$"
_TIME = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$"
)
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def events(messages: DataFrame) -> DataFrame:
    """The events in the column ``value`` as columns; every one of them is NULL where a message is
    no CloudEvent.

    ``id``, ``source``, ``type``, ``time`` (timestamp), ``subject``, ``datacontenttype``,
    ``dataschema``; ``data`` (text; JSON where ``datacontenttype`` says so or is NULL), or
    ``data_base64`` (binary); ``extensions`` (from text to text). The other columns of the message
    follow, its ``id`` as ``message_id``, and so with any other of the same name.

        events(spark.readStream.format("busmq").options(...).load()).where("type = 'user.signup'")
    """
    from pyspark.sql.functions import (
        col,
        is_valid_utf8,
        struct,
        try_parse_json,
        try_variant_get,
        when,
    )

    refuse_equal_names(messages.columns)
    rest = [name for name in messages.columns if name.lower() != "value"]
    kept = [
        f"{MESSAGE_COLUMN_PREFIX}{name}" if name.lower() in EVENT_COLUMNS else name for name in rest
    ]
    refuse_equal_names(kept)
    text = col("value").cast("string")
    found = when(
        is_valid_utf8(text) & is_json(text),
        try_variant_get(try_parse_json(text), "$", "map<string,variant>"),
    )
    message = struct(found.alias("found"), text.alias("text")).alias("message")
    parsed = messages.select(
        message, *(col(name).alias(place) for name, place in zip(rest, kept, strict=True))
    )
    inside = _Members(col("message.found"), col("message.text"))
    return parsed.select(
        when(all_of(inside.conditions()), inside.event_columns()).alias("event"), *kept
    ).select("event.*", *kept)


class _Members:
    """The members of one JSON object. It is NULL where a message is none."""

    def __init__(self, found: Column, text: Column) -> None:
        self._found, self._text = found, text

    def event_columns(self) -> Column:
        """Return the columns of an event."""
        from pyspark.sql.functions import (
            coalesce,
            from_json,
            lit,
            map_filter,
            struct,
            transform_values,
            try_variant_get,
            unbase64,
            upper,
            when,
        )

        raw = from_json(self._text, "data string")[
            "data"
        ]  # keeps the order of names, which a variant does not
        is_json_type = coalesce(self._string("datacontenttype").rlike(JSON_CONTENT_TYPE), lit(True))
        kept = map_filter(
            self._found,
            lambda name, value: ~name.isin(*RESERVED_ATTRIBUTES) & _member_type(value).isNotNull(),
        )
        return struct(
            *(self._string(name).alias(name) for name in REQUIRED_ATTRIBUTES),
            upper(self._string("time")).cast("timestamp").alias("time"),
            *(self._string(name).alias(name) for name in TEXT_ATTRIBUTES),
            when(is_json_type & (self._member_type("data") == "STRING"), json_string(raw))
            .otherwise(raw)
            .alias("data"),
            unbase64(self._string("data_base64")).alias("data_base64"),
            transform_values(kept, lambda _, value: try_variant_get(value, "$", "string")).alias(
                "extensions"
            ),
        )

    def conditions(self) -> Iterator[Column]:
        """Yield the conditions that the members of an event satisfy."""
        from pyspark.sql.functions import forall, length, map_entries, upper

        yield self._string("specversion") == SPEC_VERSION
        for name in REQUIRED_ATTRIBUTES:
            yield (self._member_type(name) == "STRING") & (length(self._string(name)) > 0)
        for name in ("time", *TEXT_ATTRIBUTES):
            yield self._member_type(name).isNull() | (self._member_type(name) == "STRING") & (
                length(self._string(name)) > 0
            )
        time, base64 = upper(self._string("time")), self._member_type("data_base64")
        yield (
            self._member_type("time").isNull()
            | time.rlike(_TIME) & time.try_cast("timestamp").isNotNull()
        )
        yield (
            base64.isNull()
            | (base64 == "STRING")
            & self._string("data_base64").rlike(_BASE64)
            & self._member_type("data").isNull()
        )
        yield forall(
            map_entries(self._found), lambda entry: _is_allowed_member(entry["key"], entry["value"])
        )

    def _string(self, name: str) -> Column:
        from pyspark.sql.functions import try_variant_get

        return try_variant_get(self._found[name], "$", "string")

    def _member_type(self, name: str) -> Column:
        return _member_type(self._found[name])


def _member_type(value: Column) -> Column:
    """The type of a member; NULL for one that is null or is not there."""
    from pyspark.sql.functions import lit, nullif, schema_of_variant

    return nullif(schema_of_variant(value), lit("VOID"))


def _is_allowed_member(name: Column, value: Column) -> Column:
    """Whether a member is one of those with names, or an extension that can be."""
    from pyspark.sql.functions import try_variant_get

    kind = _member_type(value)
    whole = (kind == "BIGINT") & try_variant_get(value, "$", "int").isNotNull()
    return (
        name.isin(*RESERVED_ATTRIBUTES)
        | kind.isNull()
        | name.rlike(EXTENSION_NAME) & (kind.isin("STRING", "BOOLEAN") | whole)
    )
