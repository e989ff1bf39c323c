"""Events, CloudEvents 1.0 in JSON, as columns and back, in Spark's own functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from busmq_spark.errors import ConfigError
from busmq_spark.routing.cloud_event import SPEC_VERSION
from busmq_spark.spark.functions.json_text_expressions import (
    all_of,
    any_of,
    is_json,
    json_object,
    json_string,
    members,
    raise_bus_error,
)
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


TIME_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
"""RFC 3339, in the zone of the session."""
SINK_COLUMNS = ("queue", "index", "topic", "partition", "key")
"""Columns that the sink takes, and an event has no place for."""
CONTENT_TYPE_OF_DATA_TYPE = {"binary": "application/octet-stream", "string": "text/plain"}
"""Default for data of these types; of any other it is JSON."""


def to_events(
    rows: DataFrame,
    *,
    type: Column | str | None = None,  # noqa: A002  # the name of the attribute
    source: Column | str | None = None,
    datacontenttype: Column | str | None = None,
) -> DataFrame:
    """Rows as events, in the column ``value``, for the sink; beside it ``queue``, ``id``, ``index``
    and so on, where the rows have them.

    The columns are those that ``events`` gives, as far as the rows have them; ``type``, ``source``
    and ``datacontenttype``, texts or columns, count for all rows. ``data`` is text, binary, or
    anything that ``to_json`` takes. Text is JSON where ``datacontenttype`` says so or is NULL, and
    ``text/plain`` where the rows have no such column. Rows whose ``id`` is that of their message (a
    long) have ``<queue>/<id>`` as the id of the event, with ``/<index>`` where they have one: a
    batch that is computed again makes the same events.

    Raises ConfigError for columns without a place. A row that makes no event ends the query with
    BUSMQ_MESSAGE_REFUSED.

        to_events(orders.select("queue", "id", struct("carrier").alias("data")), type="order.late",
        source="/pipelines/late")
    """
    from pyspark.sql.functions import col, concat_ws, lit

    refuse_equal_names(rows.columns)
    types = {column.name: column.dataType.typeName() for column in rows.schema.fields}
    message = _message_columns(types)
    parts = {
        name: col(name) for name in EVENT_COLUMNS if name in types and name not in message.values()
    }
    for name, given in {"type": type, "source": source, "datacontenttype": datacontenttype}.items():
        if given is not None and name in parts:
            raise ConfigError(
                reason=f"{name} is given, and the rows have a column {name!r}; drop one of them"
            )
        if given is not None:
            parts[name] = lit(given) if isinstance(given, str) else given
    if unknown := [name for name in types if name not in parts and name not in message.values()]:
        known = (
            f"it takes {', '.join(EVENT_COLUMNS)}, id of a message, and for the sink"
            f" {', '.join(SINK_COLUMNS)}"
        )
        raise ConfigError(reason=f"column {unknown[0]!r} has no place in an event; {known}")
    if "id" not in parts and {"queue", "id"} <= message.keys():
        parts["id"] = concat_ws(
            "/",
            *(
                col(message[name]).cast("string")
                for name in ("queue", "id", "index")
                if name in message
            ),
        )
    if missing := [name for name in REQUIRED_ATTRIBUTES if name not in parts]:
        remedy = (
            "give the rows a column, or queue and id of their message"
            if missing[0] == "id"
            else f"say {missing[0]}=…, or give the rows a column"
        )
        raise ConfigError(reason=f"an event needs {missing[0]!r}; {remedy}")
    value = _EventJson(parts, types).column()
    return rows.select(
        *(col(name).alias(place) for place, name in message.items()), value.alias("value")
    )


def _message_columns(types: Mapping[str, str]) -> dict[str, str]:
    """The columns of a message that go on to the sink: their name there, and that of the rows."""
    found = {name: name for name in SINK_COLUMNS if name in types}
    if types.get("id") == "long":
        found["id"] = "id"
    return found | {
        name: f"{MESSAGE_COLUMN_PREFIX}{name}"
        for name in ("id", "source")
        if f"{MESSAGE_COLUMN_PREFIX}{name}" in types
    }


class _EventJson:
    """The JSON of an event made of these columns."""

    def __init__(self, parts: Mapping[str, Column], types: Mapping[str, str]) -> None:
        from pyspark.sql.functions import date_format, lit, to_json, when

        self._parts = dict(parts)
        kind = types.get("data", "string")
        if "data" in parts and kind == "binary":
            self._parts["data_base64"] = self._parts.pop("data")
        elif "data" in parts and kind not in CONTENT_TYPE_OF_DATA_TYPE:
            simple = kind in (
                "boolean",
                "byte",
                "short",
                "integer",
                "long",
                "float",
                "double",
                "decimal",
            )
            self._parts["data"] = parts["data"].cast("string") if simple else to_json(parts["data"])
        if "data" in parts and "datacontenttype" not in parts:
            self._parts["datacontenttype"] = when(
                parts["data"].isNotNull(),
                lit(CONTENT_TYPE_OF_DATA_TYPE.get(kind, "application/json")),
            )
        if "time" in parts and types.get("time") != "string":
            self._parts["time"] = date_format(parts["time"], TIME_FORMAT)

    def column(self) -> Column:
        """NULL for no row; a row that makes no event ends the query."""
        from pyspark.sql.functions import coalesce, lit, struct, when

        named = [
            self._parts[name].alias(name)
            for name in (*REQUIRED_ATTRIBUTES, "time", *TEXT_ATTRIBUTES)
            if name in self._parts
        ]
        found = json_object(
            [
                members(struct(lit(SPEC_VERSION).alias("specversion"), *named)),
                *self._optional_members(),
            ]
        )
        for wrong, why in self._error_conditions():
            found = when(wrong, raise_bus_error(why)).otherwise(found)
        return coalesce(found, raise_bus_error("it is NULL"))

    def _optional_members(self) -> Iterator[Column]:
        from pyspark.sql.functions import concat, lit, struct, when

        if "extensions" in self._parts:
            yield members(self._extensions())
        if "data" in self._parts:
            data = self._parts["data"]
            yield concat(
                lit('"data":'), when(self._is_json_type(), data).otherwise(json_string(data))
            )
        if "data_base64" in self._parts:
            yield members(struct(self._parts["data_base64"].alias("data_base64")))

    def _error_conditions(self) -> Iterator[tuple[Column, Column]]:
        """Yield the conditions of rows that make no event, with their texts."""
        from pyspark.sql.functions import coalesce, concat, exists, length, lit, map_keys

        event = concat(lit("event "), coalesce(self._parts["id"], lit("without an id")))
        if "extensions" in self._parts:
            names = map_keys(self._extensions())
            yield (
                exists(
                    names,
                    lambda name: ~name.rlike(EXTENSION_NAME) | name.isin(*RESERVED_ATTRIBUTES),
                ),
                concat(event, lit(" has an extension of a name that none can have")),
            )
        if "data" in self._parts:
            data = self._parts["data"]
            yield (
                data.isNotNull() & self._is_json_type() & ~is_json(data),
                concat(lit("the data of "), event, lit(" is no JSON, as its datacontenttype says")),
            )
            if "data_base64" in self._parts:
                yield (
                    data.isNotNull() & self._parts["data_base64"].isNotNull(),
                    concat(event, lit(" has both data and data_base64")),
                )
        empty = any_of(
            coalesce(length(self._parts[name]), lit(0)) == 0 for name in REQUIRED_ATTRIBUTES
        )
        yield empty, concat(event, lit(": its id, source or type is NULL or empty"))

    def _extensions(self) -> Column:
        from pyspark.sql.functions import map_filter

        return map_filter(self._parts["extensions"], lambda _, value: value.isNotNull())

    def _is_json_type(self) -> Column:
        from pyspark.sql.functions import coalesce, lit

        return (
            coalesce(self._parts["datacontenttype"].rlike(JSON_CONTENT_TYPE), lit(True))
            if "datacontenttype" in self._parts
            else lit(True)
        )
